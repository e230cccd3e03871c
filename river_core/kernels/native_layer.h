// One row through a decoder layer, or a part of one, shared out over a team of threads.
//
// Every function here runs on all threads of a team. Work is split by rows or by heads,
// in units that do not depend on the number of threads, so no result does either. Knows nothing of
// Python, torch, models or policies.
#pragma once

#include "native_attention.h"
#include "native_rows.h"

#include "native_threads.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

struct Layer {  // what it may not have is null or 0
    Matrix qkv, o, gate_up, down;
    const float *attn_norm, *ffn_norm;            // before each half
    const float *attn_post_norm, *ffn_post_norm;  // after it
    const float *qkv_bias, *qk_norm;              // qk_norm: a row per head of q and of k
    int64_t heads, kv_heads, head_dim;
    int64_t whole_norm;  // qk_norm is over all heads of q at once, and of k, instead of each head
    int64_t window;      // positions that a row reads, its own too
    int64_t gelu;        // the gate's activation is GELU (tanh) instead of SiLU
    float eps, scale;    // scale of the attention scores
};
struct Cache {  // k, v: [kv_heads, capacity, head_dim], strides in numbers
    void *k, *v;
    int64_t kind, head_stride, row_stride;
    const float *cos, *sin;  // [capacity, head_dim]; null: no RoPE
    const float* queries;    // [capacity]: factor of the turned queries, or null
    int32_t* readable;       // where slots are missing: the rows that later tokens may read,
    const int64_t* count;    // and how many; below 0 they may read all
};
enum Parts { ATTENTION = 1, FEED_FORWARD = 2 };

struct Range { int64_t from, to; };
static Range share(int64_t total, int64_t unit) {  // this thread's part, in whole units
    int64_t t = this_thread(), threads = all_threads();
    int64_t units = (total + unit - 1) / unit, to = units * (t + 1) / threads * unit;
    return {units * t / threads * unit, to < total ? to : total};
}
// OpenMP's own barrier spins for whole time slices when another program holds the processor that
// the awaited thread needs (32 ms a layer beside one busy program on two cores); this one yields.
struct Barrier {
    std::atomic<int> arrived{0}, phase{0};
    void wait() {
        int now = phase.load();
        if (arrived.fetch_add(1) + 1 == all_threads()) {
            arrived.store(0);
            phase.store(now + 1);
        } else {
            for (int spins = 0; phase.load() == now; spins++)
                if (spins > 1000) std::this_thread::yield();
        }
    }
};
static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
template <int Tag> static float* scratch(int64_t floats) {  // kept by each thread; 64-byte aligned
    thread_local std::vector<float> memory;
    if ((int64_t)memory.size() < floats + 16) memory.resize(floats + 16);
    return (float*)(((uintptr_t)memory.data() + 63) / 64 * 64);
}
template <class T> static void write(const float* x, int64_t dim, T* row) {
    for (int64_t i = 0; i < dim; i += 8) narrow(load<f32x8>(x + i), row + i);
}
// Work items are chunks of a KV head's rows, read once for all the query heads that share it.
static const int64_t CHUNK = 128;
static int64_t chunks_of(int64_t position) { return position / CHUNK + 1; }
struct Whole { float q, k; };  // what norms over all heads of q, or of k, multiply by
static Whole whole_scales(const Layer& l, const float* qkv, Barrier& all) {
    if (!l.qk_norm || !l.whole_norm) return {};
    int64_t q = l.heads * l.head_dim, k = l.kv_heads * l.head_dim;
    Whole scales{rms_scale(qkv, q, l.eps), rms_scale(qkv + q, k, l.eps)};
    all.wait();  // nobody may change a head before
    return scales;
}
// This thread's heads of q, k and v: normed and rotated, and k and v written to their slots.
template <class T>
static void place(const Layer& l, const Cache& c, float* qkv, int64_t position, Range heads,
                  Whole whole) {
    int64_t dim = l.head_dim, turn = position * dim;
    for (int64_t i = heads.from; i < heads.to; i++) {
        float* x = qkv + i * dim;
        int64_t stored = i - l.heads, head = stored % l.kv_heads;  // k heads, then v heads
        if (l.qk_norm && stored < l.kv_heads) {
            float all_heads = stored < 0 ? whole.q : whole.k;
            float scale = l.whole_norm ? all_heads : rms_scale(x, dim, l.eps);
            scaled(x, scale, l.qk_norm + i * dim, dim, x);
        }
        if (c.cos && stored < l.kv_heads) rotate(x, c.cos + turn, c.sin + turn, dim);
        if (c.queries && stored < 0)
            for (int64_t d = 0; d < dim; d++) x[d] *= c.queries[position];
        T* at = (T*)(stored < l.kv_heads ? c.k : c.v) + position * c.row_stride;
        if (stored >= 0) write(x, dim, at + head * c.head_stride);
    }
}
struct Seen { const int32_t* index; int64_t from, to; };  // rows at `index`, or by their number
static Seen seen_from(const Layer& l, const Cache& c, int64_t position) {
    const int32_t* index = *c.count < 0 ? nullptr : c.readable;  // ascending
    int64_t to = index ? *c.count + 1 : position + 1;  // the own row is the last
    int64_t from = l.window && position >= l.window ? position + 1 - l.window : 0;
    return {index, index ? std::lower_bound(index, index + to, from) - index : from, to};
}
template <class T>
static void attention(const Layer& l, const Cache& c, float* qkv, int64_t position, float* parts,
                      float* out, Barrier& all) {
    Seen seen = seen_from(l, c, position);
    int64_t dim = l.head_dim, repeat = l.heads / l.kv_heads, width = padded(dim + 2);
    int64_t chunks = chunks_of(seen.to - seen.from - 1);
    Whole whole = whole_scales(l, qkv, all);
    place<T>(l, c, qkv, position, share(l.heads + 2 * l.kv_heads, 1), whole);
    all.wait();
    Range mine = share(l.kv_heads * chunks, 1);
    for (int64_t i = mine.from; i < mine.to; i++) {
        int64_t group = i / chunks, from = seen.from + i % chunks * CHUNK;
        int64_t rows = i % chunks < chunks - 1 ? CHUNK : seen.to - from;
        int64_t at = group * c.head_stride + (seen.index ? 0 : from * c.row_stride);
        for (int64_t h = group * repeat, end = h + repeat, n; h < end; h += n) {
            n = end - h >= 3 && end - h != 4 ? 3 : end - h >= 2 ? 2 : 1;
            auto* one = n == 3 ? attend<T, 3> : n == 2 ? attend<T, 2> : attend<T, 1>;
            one(qkv + h * dim, (const T*)c.k + at, (const T*)c.v + at, c.row_stride,
                seen.index ? seen.index + from : nullptr, rows, dim, l.scale,
                parts + (i % chunks * l.heads + h) * width, width);
        }
    }
    all.wait();
    mine = share(l.heads, 1);
    for (int64_t h = mine.from; h < mine.to; h++)
        merge(parts + h * width, chunks, l.heads * width, dim, out + h * dim);
}
// h after a norm, or as it is.
static const float* before(const Layer& l, const float* norm, const float* h, float* normed) {
    if (!norm) return h;
    rms_norm(h, norm, l.qkv.cols, l.eps, normed);
    return normed;
}
// This thread's rows of h, plus those of y, or of y after a norm.
static void add(const Layer& l, const float* norm, const float* y, float* h, Barrier& all) {
    Range mine = share(l.qkv.cols, 8);
    if (!norm) {
        for (int64_t i = mine.from; i < mine.to; i++) h[i] += y[i];
        return;
    }
    all.wait();
    float scale = rms_scale(y, l.qkv.cols, l.eps);
    for (int64_t i = mine.from; i < mine.to; i++) h[i] += y[i] * scale * norm[i];
}
static void project(const Layer& l, const Input& in, Range mine, float* qkv) {
    rows(l.qkv, in, mine.from, mine.to, qkv);
    if (l.qkv_bias)
        for (int64_t i = mine.from; i < mine.to; i++) qkv[i] += l.qkv_bias[i];
}
static void product(const Matrix& m, const float* x, float* packed, float* y) {
    Range mine = share(m.rows, 8);
    rows(m, prepare(m, x, packed), mine.from, mine.to, y);
}

struct Shared {  // one row's intermediates, written by parts and read by all threads
    float *y, *qkv, *mixed, *parts, *gate_up;
};
static void run_attention(const Layer& l, const Cache& c, float* h, int64_t position,
                          const Shared& s, float* own, Barrier& all) {
    float *normed = own, *packed = own + padded(l.qkv.cols);
    Input in = prepare(l.qkv, before(l, l.attn_norm, h, normed), packed);
    project(l, in, share(l.qkv.rows, 8), s.qkv);
    all.wait();
    if (c.kind == FP16) attention<half>(l, c, s.qkv, position, s.parts, s.mixed, all);
    if (c.kind == BF16) attention<bhalf>(l, c, s.qkv, position, s.parts, s.mixed, all);
    if (c.kind == FP32) attention<float>(l, c, s.qkv, position, s.parts, s.mixed, all);
    all.wait();
    product(l.o, s.mixed, packed, s.y);
    add(l, l.attn_post_norm, s.y, h, all);
    all.wait();
}
static void run_feed_forward(const Layer& l, float* h, const Shared& s, float* own, Barrier& all) {
    int64_t ffn = l.gate_up.rows / 2;
    float *normed = own, *packed = own + padded(l.qkv.cols);
    Input in = prepare(l.gate_up, before(l, l.ffn_norm, h, normed), packed);
    Range mine = share(ffn, 8);
    rows(l.gate_up, in, mine.from, mine.to, s.gate_up);
    rows(l.gate_up, in, ffn + mine.from, ffn + mine.to, s.gate_up);
    for (int64_t i = mine.from; i < mine.to; i += 8) {
        f32x8 gate = load<f32x8>(s.gate_up + i), up = load<f32x8>(s.gate_up + ffn + i);
        store(s.gate_up + i, (l.gelu ? gelu_tanh(gate) : silu(gate)) * up);
    }
    all.wait();
    product(l.down, s.gate_up, packed, s.y);
    add(l, l.ffn_post_norm, s.y, h, all);
    all.wait();
}
// Keys and values of a layer from h alone; every thread keeps to its own heads, so that none waits
// but for a norm over all of them.
static void run_keys_values(const Layer& l, const Cache& c, const float* h, int64_t position,
                            float* qkv, float* own, Barrier& all) {
    float *normed = own, *packed = own + padded(l.qkv.cols);
    Input in = prepare(l.qkv, before(l, l.attn_norm, h, normed), packed);
    Range heads = share(2 * l.kv_heads, 1);
    heads = {heads.from + l.heads, heads.to + l.heads};
    project(l, in, {heads.from * l.head_dim, heads.to * l.head_dim}, qkv);
    if (l.whole_norm) all.wait();
    Whole whole = whole_scales(l, qkv, all);
    if (c.kind == FP16) place<half>(l, c, qkv, position, heads, whole);
    if (c.kind == BF16) place<bhalf>(l, c, qkv, position, heads, whole);
    if (c.kind == FP32) place<float>(l, c, qkv, position, heads, whole);
}
static int64_t own_size(const Layer* const* layers, int64_t count) {  // floats of `own`
    int64_t size = 0, d = padded(layers[0]->qkv.cols);
    for (int64_t i = 0; i < count; i++)
        for (const Matrix& m : {layers[i]->qkv, layers[i]->o, layers[i]->gate_up, layers[i]->down})
            size = std::max(size, d + scratch_of(m));
    return size;
}
