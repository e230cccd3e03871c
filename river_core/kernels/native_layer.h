// One row through a decoder layer, or a part of one, shared out over a team of threads.
//
// Every function here runs on all threads of an OpenMP region. Work is split by rows or by heads,
// in units that do not depend on the number of threads, so no result does either. Knows nothing of
// Python, torch, models or policies.
#pragma once

#include "native_rows.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <vector>

struct Layer {
    Matrix qkv, o, gate_up, down;
    const float *attn_norm, *ffn_norm;
    int64_t heads, kv_heads, head_dim;
    float eps;
};
struct Cache {  // k, v: [kv_heads, capacity, head_dim], strides in numbers
    void *k, *v;
    int64_t kind, head_stride, row_stride;
    const float *cos, *sin;  // [capacity, head_dim]
    int32_t* readable;       // where slots are missing: the rows that later tokens may read,
    const int64_t* count;    // and how many; below 0 they may read all
};
enum Parts { ATTENTION = 1, FEED_FORWARD = 2 };

struct Range { int64_t from, to; };
static Range share(int64_t total, int64_t unit) {  // this thread's part, in whole units
    int64_t t = omp_get_thread_num(), threads = omp_get_num_threads();
    int64_t units = (total + unit - 1) / unit, to = units * (t + 1) / threads * unit;
    return {units * t / threads * unit, to < total ? to : total};
}
// OpenMP's own barrier spins for whole time slices when another program holds the processor that
// the awaited thread needs (32 ms a layer beside one busy program on two cores); this one yields.
struct Barrier {
    std::atomic<int> arrived{0}, phase{0};
    void wait() {
        int now = phase.load();
        if (arrived.fetch_add(1) + 1 == omp_get_num_threads()) {
            arrived.store(0);
            phase.store(now + 1);
        } else {
            for (int spins = 0; phase.load() == now; spins++)
                if (spins > 1000) sched_yield();
        }
    }
};
static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
template <int Tag> static float* scratch(int64_t floats) {  // kept by each thread; 64-byte aligned
    thread_local std::vector<float> memory;
    if ((int64_t)memory.size() < floats + 16) memory.resize(floats + 16);
    return (float*)(((uintptr_t)memory.data() + 63) / 64 * 64);
}
template <class T> static inline void fetch4(const T* from, const int64_t* at, int64_t dim) {
    for (int r = 0; r < 4; r++)
        for (int64_t d = 0; d < dim; d += 64 / sizeof(T)) __builtin_prefetch(from + at[r] + d);
}
template <class T> static void write(const float* x, int64_t dim, T* row) {
    for (int64_t i = 0; i < dim; i += 8) narrow(load<f32x8>(x + i), row + i);
}
// N query heads [N, dim] over the same `rows` cache rows (those at `index`, or the first ones), to N
// parts `width` apart: the values' sum under exp(score - top), then `top` and the sum of the
// exponentials. In blocks, with a running maximum.
template <class T, int N>
static void attend(const float* q, const T* k, const T* v, int64_t stride, const int32_t* index,
                   int64_t rows, int64_t dim, float* out, int64_t width) {
    constexpr int block = 64;
    float scale = 1 / sqrtf((float)dim), p[N][block];
    int64_t at[block];  // the last one again beyond the end: rows there may hold anything
    for (int h = 0; h < N; h++) {
        memset(out + h * width, 0, dim * sizeof(float));
        out[h * width + dim] = -INFINITY;
        out[h * width + dim + 1] = 0;
    }
    for (int64_t from = 0; from < rows; from += block) {
        int n = rows - from < block ? (int)(rows - from) : block;
        for (int j = 0; j < block; j++) {
            int64_t row = from + (j < n ? j : n - 1);
            at[j] = (index ? index[row] : row) * stride;
        }
        for (int j = 0; j < n; j += 4) {
            f32x8 s[N][4] = {};
            fetch4(v, at + j, dim);
            for (int64_t d = 0; d < dim; d += 8)
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++) {
                    f32x8 key = widen(k + at[j + r] + d);
#pragma GCC unroll 4
                    for (int h = 0; h < N; h++) s[h][r] += load<f32x8>(q + h * dim + d) * key;
                }
            for (int h = 0; h < N; h++) store(p[h] + j, sum4(s[h]) * scale);
        }
        for (int h = 0; h < N; h++) {
            float *o = out + h * width, *top = o + dim, *total = top + 1, before = *top;
            for (int j = n; j % 8; j++) p[h][j] = -INFINITY;
            f32x8 most = all(before), sums = {};
            for (int j = 0; j < n; j += 8) most = larger(load<f32x8>(p[h] + j), most);
            *top = largest(most);
            for (int j = 0; j < n; j += 8) {
                f32x8 e = exp8(load<f32x8>(p[h] + j) - *top);
                store(p[h] + j, e);
                sums += e;
            }
            float keep = exp8(all(before - *top))[0];
            *total = *total * keep + sum(sums);
            for (int64_t d = 0; d < dim; d++) o[d] *= keep;
        }
        for (int j = 0; j < n; j += 4) {
            if (!index) fetch4(k + block * stride, at + j, dim);  // keys of the next block
            for (int64_t d = 0; d < dim; d += 8) {
                f32x8 value[4];
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++) value[r] = widen(v + at[j + r] + d);
#pragma GCC unroll 4
                for (int h = 0; h < N; h++) {
                    f32x8 o = load<f32x8>(out + h * width + d);
#pragma GCC unroll 4
                    for (int r = 0; r < 4; r++) o += p[h][j + r] * value[r];
                    store(out + h * width + d, o);
                }
            }
        }
    }
}
// Parts of one head's rows, `width` numbers apart, as `attend` leaves them -> softmax's mean.
static void merge(const float* parts, int64_t count, int64_t width, int64_t dim, float* out) {
    float top = -INFINITY, total = 0;
    for (int64_t i = 0; i < count; i++) top = fmaxf(top, parts[i * width + dim]);
    memset(out, 0, dim * sizeof(float));
    for (int64_t i = 0; i < count; i++, parts += width) {
        float weight = exp8(all(parts[dim] - top))[0];
        total += weight * parts[dim + 1];
        for (int64_t d = 0; d < dim; d++) out[d] += weight * parts[d];
    }
    for (int64_t d = 0; d < dim; d++) out[d] /= total;
}
// Work items are chunks of a KV head's rows, read once for all the query heads that share it.
static const int64_t CHUNK = 128;
static int64_t chunks_of(int64_t position) { return position / CHUNK + 1; }
// This thread's heads of q, k and v: rotated, and k and v written to their slots.
template <class T>
static void place(const Layer& l, const Cache& c, float* qkv, int64_t position, Range heads) {
    int64_t dim = l.head_dim;
    for (int64_t i = heads.from; i < heads.to; i++) {
        float* x = qkv + i * dim;
        int64_t stored = i - l.heads, head = stored % l.kv_heads;  // k heads, then v heads
        if (stored < l.kv_heads) rotate(x, c.cos + position * dim, c.sin + position * dim, dim);
        T* at = (T*)(stored < l.kv_heads ? c.k : c.v) + position * c.row_stride;
        if (stored >= 0) write(x, dim, at + head * c.head_stride);
    }
}
template <class T>
static void attention(const Layer& l, const Cache& c, float* qkv, int64_t position, float* parts,
                      float* out, Barrier& all) {
    const int32_t* index = *c.count < 0 ? nullptr : c.readable;
    int64_t seen = index ? *c.count + 1 : position + 1;  // the own row is the last
    int64_t dim = l.head_dim, repeat = l.heads / l.kv_heads, chunks = chunks_of(seen - 1);
    int64_t width = padded(dim + 2);
    place<T>(l, c, qkv, position, share(l.heads + 2 * l.kv_heads, 1));
    all.wait();
    Range mine = share(l.kv_heads * chunks, 1);
    for (int64_t i = mine.from; i < mine.to; i++) {
        int64_t group = i / chunks, from = i % chunks * CHUNK;
        int64_t rows = i % chunks < chunks - 1 ? CHUNK : seen - from;
        int64_t at = group * c.head_stride + (index ? 0 : from * c.row_stride);
        for (int64_t h = group * repeat, end = h + repeat, n; h < end; h += n) {
            n = end - h >= 3 && end - h != 4 ? 3 : end - h >= 2 ? 2 : 1;
            auto* one = n == 3 ? attend<T, 3> : n == 2 ? attend<T, 2> : attend<T, 1>;
            one(qkv + h * dim, (const T*)c.k + at, (const T*)c.v + at, c.row_stride,
                index ? index + from : nullptr, rows, dim,
                parts + (i % chunks * l.heads + h) * width, width);
        }
    }
    all.wait();
    mine = share(l.heads, 1);
    for (int64_t h = mine.from; h < mine.to; h++)
        merge(parts + h * width, chunks, l.heads * width, dim, out + h * dim);
}
static void add_product(const Matrix& m, const float* x, float* packed, float* y, float* h) {
    Range mine = share(m.rows, 8);
    rows(m, prepare(m, x, packed), mine.from, mine.to, y);
    for (int64_t i = mine.from; i < mine.to; i++) h[i] += y[i];
}

struct Shared {  // one row's intermediates, written by parts and read by all threads
    float *y, *qkv, *mixed, *parts, *gate_up;
};
static void run_attention(const Layer& l, const Cache& c, float* h, int64_t position,
                          const Shared& s, float* own, Barrier& all) {
    float *normed = own, *packed = own + padded(l.qkv.cols);
    rms_norm(h, l.attn_norm, l.qkv.cols, l.eps, normed);
    Range mine = share(l.qkv.rows, 8);
    rows(l.qkv, prepare(l.qkv, normed, packed), mine.from, mine.to, s.qkv);
    all.wait();
    if (c.kind == FP16) attention<half>(l, c, s.qkv, position, s.parts, s.mixed, all);
    if (c.kind == BF16) attention<bhalf>(l, c, s.qkv, position, s.parts, s.mixed, all);
    if (c.kind == FP32) attention<float>(l, c, s.qkv, position, s.parts, s.mixed, all);
    all.wait();
    add_product(l.o, s.mixed, packed, s.y, h);
    all.wait();
}
static void run_feed_forward(const Layer& l, float* h, const Shared& s, float* own, Barrier& all) {
    int64_t ffn = l.gate_up.rows / 2;
    float *normed = own, *packed = own + padded(l.qkv.cols);
    rms_norm(h, l.ffn_norm, l.qkv.cols, l.eps, normed);
    Input in = prepare(l.gate_up, normed, packed);
    Range mine = share(ffn, 8);
    rows(l.gate_up, in, mine.from, mine.to, s.gate_up);
    rows(l.gate_up, in, ffn + mine.from, ffn + mine.to, s.gate_up);
    for (int64_t i = mine.from; i < mine.to; i += 8) {
        f32x8 gate = load<f32x8>(s.gate_up + i), up = load<f32x8>(s.gate_up + ffn + i);
        store(s.gate_up + i, gate / (1.f + exp8(-gate)) * up);
    }
    all.wait();
    add_product(l.down, s.gate_up, packed, s.y, h);
    all.wait();
}
// Keys and values of a layer from h alone; every thread keeps to its own heads, so none waits.
static void run_keys_values(const Layer& l, const Cache& c, const float* h, int64_t position,
                            float* qkv, float* own) {
    float *normed = own, *packed = own + padded(l.qkv.cols);
    rms_norm(h, l.attn_norm, l.qkv.cols, l.eps, normed);
    Input in = prepare(l.qkv, normed, packed);
    Range heads = share(2 * l.kv_heads, 1);
    heads = {heads.from + l.heads, heads.to + l.heads};
    rows(l.qkv, in, heads.from * l.head_dim, heads.to * l.head_dim, qkv);
    if (c.kind == FP16) place<half>(l, c, qkv, position, heads);
    if (c.kind == BF16) place<bhalf>(l, c, qkv, position, heads);
    if (c.kind == FP32) place<float>(l, c, qkv, position, heads);
}
static int64_t own_size(const Layer* const* layers, int64_t count) {  // floats of `own`
    int64_t size = 0, d = padded(layers[0]->qkv.cols);
    for (int64_t i = 0; i < count; i++)
        for (const Matrix& m : {layers[i]->qkv, layers[i]->o, layers[i]->gate_up, layers[i]->down})
            size = std::max(size, d + scratch_of(m));
    return size;
}
