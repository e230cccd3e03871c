// One whole decoder layer for a single row, and products of a few rows.
//
// Plain C interface, called through ctypes. Knows nothing of Python, torch, models or policies.
// Work is split by rows or by heads, in units that do not depend on the number of threads, so no
// result does either. No fast-math, no atomics.

#include "native.h"

#include <omp.h>

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
};

struct Range { int64_t from, to; };
static Range share(int64_t total, int64_t unit) {  // this thread's part, in whole units
    int64_t t = omp_get_thread_num(), threads = omp_get_num_threads();
    int64_t units = (total + unit - 1) / unit, to = units * (t + 1) / threads * unit;
    return {units * t / threads * unit, to < total ? to : total};
}
static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
template <int Tag> static float* scratch(int64_t floats) {  // kept by each thread; 64-byte aligned
    thread_local std::vector<float> memory;
    if ((int64_t)memory.size() < floats + 16) memory.resize(floats + 16);
    return (float*)(((uintptr_t)memory.data() + 63) / 64 * 64);
}
static void rms_norm(const float* x, const float* weight, int64_t d, float eps, float* y) {
    f32x8 a = {}, b = {};
    for (int64_t i = 0; i + 16 <= d; i += 16) {
        a += load<f32x8>(x + i) * load<f32x8>(x + i);
        b += load<f32x8>(x + i + 8) * load<f32x8>(x + i + 8);
    }
    if (d % 16) a += load<f32x8>(x + d - 8) * load<f32x8>(x + d - 8);
    float scale = 1 / sqrtf(sum(a + b) / d + eps);
    for (int64_t i = 0; i < d; i++) y[i] = x[i] * scale * weight[i];
}
static float cosine(const float* x, const float* y, int64_t d) {
    f32x8 xy = {}, xx = {}, yy = {};
    for (int64_t i = 0; i < d; i += 8) {
        f32x8 a = load<f32x8>(x + i), b = load<f32x8>(y + i);
        xy += a * b;
        xx += a * a;
        yy += b * b;
    }
    float norms = sqrtf(sum(xx)) * sqrtf(sum(yy));
    float c = sum(xy) / (norms < 1e-8f ? 1e-8f : norms);
    return c > 1 ? 1 : c < -1 ? -1 : c;  // NaN stays NaN
}
static void rotate(float* x, const float* cos, const float* sin, int64_t dim) {
    for (int64_t i = 0, half = dim / 2; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}
template <class T> static void write(const float* x, int64_t dim, T* row) {
    for (int64_t i = 0; i < dim; i += 8) narrow(load<f32x8>(x + i), row + i);
}
template <class T, int N>
static inline void add_rows(const float* p, const T* v, int64_t stride, int64_t dim, float* out) {
    for (int64_t d = 0; d < dim; d += 8) {
        f32x8 o = load<f32x8>(out + d);
        for (int j = 0; j < N; j++) o += p[j] * widen(v + j * stride + d);
        store(out + d, o);
    }
}
// One query head over cache rows 0..rows-1: softmax in blocks with a running maximum.
template <class T>
static void attend(const float* q, const T* k, const T* v, int64_t stride, int64_t rows,
                   int64_t dim, float* out) {
    constexpr int block = 64;
    float scale = 1 / sqrtf((float)dim), top = -INFINITY, total = 0;
    memset(out, 0, dim * sizeof(float));
    for (int64_t from = 0; from < rows; from += block, k += block * stride, v += block * stride) {
        int n = rows - from < block ? (int)(rows - from) : block;
        float p[block];
        for (int j = 0; j < block; j++) p[j] = -INFINITY;
        f32x8 most = all(top), sums = {};
        for (int j = 0; j < n; j += 4) {
            f32x8 s[4] = {};
            int last = n - j < 4 ? n - j - 1 : 3;  // rows beyond it may hold anything
            const T* at[4];
            for (int r = 0; r < 4; r++) at[r] = k + (j + (r < last ? r : last)) * stride;
            for (int64_t d = 0; d < dim; d += 8)
                for (int r = 0; r < 4; r++) s[r] += load<f32x8>(q + d) * widen(at[r] + d);
            f32x4 four = sum4(s) * scale;
            memcpy(p + j, &four, (last + 1) * sizeof(float));
        }
        for (int j = 0; j < n; j += 8) most = larger(load<f32x8>(p + j), most);
        float now = largest(most), keep = exp8(all(top - now))[0];
        for (int j = 0; j < n; j += 8) {
            f32x8 e = exp8(load<f32x8>(p + j) - now);
            store(p + j, e);
            sums += e;
        }
        top = now;
        total = total * keep + sum(sums);
        for (int64_t d = 0; d < dim; d++) out[d] *= keep;
        int j = 0;
        for (; j + 4 <= n; j += 4) add_rows<T, 4>(p + j, v + j * stride, stride, dim, out);
        for (; j < n; j++) add_rows<T, 1>(p + j, v + j * stride, stride, dim, out);
    }
    for (int64_t d = 0; d < dim; d++) out[d] /= total;
}
template <class T>
static void attention(const Layer& l, const Cache& c, float* qkv, int64_t position, float* out) {
    int64_t dim = l.head_dim, repeat = l.heads / l.kv_heads;
    const float *cos = c.cos + position * dim, *sin = c.sin + position * dim;
    Range mine = share(2 * l.kv_heads, 1);
    for (int64_t i = mine.from; i < mine.to; i++) {
        int64_t head = i % l.kv_heads;
        float* x = qkv + (l.heads + i) * dim;
        if (i < l.kv_heads) rotate(x, cos, sin, dim);
        T* rows = (T*)(i < l.kv_heads ? c.k : c.v) + head * c.head_stride;
        write(x, dim, rows + position * c.row_stride);
    }
#pragma omp barrier
    mine = share(l.heads, 1);
    for (int64_t i = mine.from; i < mine.to; i++) {
        int64_t at = i / repeat * c.head_stride;
        rotate(qkv + i * dim, cos, sin, dim);
        attend(qkv + i * dim, (const T*)c.k + at, (const T*)c.v + at, c.row_stride, position + 1,
               dim, out + i * dim);
    }
}
static void add_product(const Matrix& m, const float* x, float* packed, float* y, float* h) {
    Range mine = share(m.rows, 8);
    rows(m, prepare(m, x, packed), mine.from, mine.to, y);
    for (int64_t i = mine.from; i < mine.to; i++) h[i] += y[i];
}

extern "C" {

// h [hidden] in place; returns the cosine of its values before and after.
float river_layer(const Layer* layer, const Cache* cache, float* h, int64_t position, int threads) {
    const Layer& l = *layer;
    int64_t d = l.qkv.cols, ffn = l.gate_up.rows / 2, wide = l.heads * l.head_dim, need = 0;
    for (const Matrix* m : {&l.qkv, &l.o, &l.gate_up, &l.down})
        need = scratch_of(*m) > need ? scratch_of(*m) : need;
    float* before = scratch<0>(2 * padded(d) + padded(l.qkv.rows) + padded(wide) + 2 * padded(ffn));
    float *qkv = before + padded(d), *mixed = qkv + padded(l.qkv.rows), *y = mixed + padded(wide);
    float* gate_up = y + padded(d);
#pragma omp parallel num_threads(threads)
    {
        float *normed = scratch<1>(padded(d) + need), *packed = normed + padded(d);
        if (omp_get_thread_num() == 0) memcpy(before, h, d * sizeof(float));
        rms_norm(h, l.attn_norm, d, l.eps, normed);
        Range mine = share(l.qkv.rows, 8);
        rows(l.qkv, prepare(l.qkv, normed, packed), mine.from, mine.to, qkv);
#pragma omp barrier
        if (cache->kind == FP16) attention<half>(l, *cache, qkv, position, mixed);
        if (cache->kind == BF16) attention<bhalf>(l, *cache, qkv, position, mixed);
        if (cache->kind == FP32) attention<float>(l, *cache, qkv, position, mixed);
#pragma omp barrier
        add_product(l.o, mixed, packed, y, h);
#pragma omp barrier
        rms_norm(h, l.ffn_norm, d, l.eps, normed);
        Input in = prepare(l.gate_up, normed, packed);
        mine = share(ffn, 8);
        rows(l.gate_up, in, mine.from, mine.to, gate_up);
        rows(l.gate_up, in, ffn + mine.from, ffn + mine.to, gate_up);
        for (int64_t i = mine.from; i < mine.to; i += 8) {
            f32x8 gate = load<f32x8>(gate_up + i), up = load<f32x8>(gate_up + ffn + i);
            store(gate_up + i, gate / (1.f + exp8(-gate)) * up);
        }
#pragma omp barrier
        add_product(l.down, gate_up, packed, y, h);
    }
    return cosine(before, h, d);
}

// logits [rows] of the normed h [cols].
void river_head(const Matrix* m, const float* norm, float eps, const float* h, float* logits,
                int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *normed = scratch<1>(padded(m->cols) + scratch_of(*m));
        rms_norm(h, norm, m->cols, eps, normed);
        Range mine = share(m->rows, 8);
        rows(*m, prepare(*m, normed, normed + padded(m->cols)), mine.from, mine.to, logits);
    }
}

// y [count, rows] of x [count, cols], count <= 4: weights are read from memory once.
void river_linear(const Matrix* m, const float* x, int64_t count, float* y, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Input in[4];
        float* packed = scratch<1>(count * padded(scratch_of(*m)));
        for (int64_t i = 0; i < count; i++)
            in[i] = prepare(*m, x + i * m->cols, packed + i * padded(scratch_of(*m)));
        Range mine = share(m->rows, 8);
        int64_t block = count == 1 ? mine.to - mine.from : 8;
        for (int64_t n = mine.from; n < mine.to; n += block)
            for (int64_t i = 0; i < count; i++)
                rows(*m, in[i], n, n + block < mine.to ? n + block : mine.to, y + i * m->rows);
    }
}

// The weights that the 4-bit rows from..to-1 stand for, fp32 [to - from, cols].
void river_dequantise(const Matrix* m, int64_t from, int64_t to, float* out, int threads) {
    int64_t groups = groups_of(*m), width = groups * m->group / 4;  // 16-bit words per row
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = from; n < to; n++) {
        int64_t r = n % 4, span = m->group < 64 ? 64 : m->group;
        for (int64_t c = 0; c < m->cols; c++) {
            int64_t g = c / m->group, j = m->group == 32 ? c % 32 / 8 : c % 64 / 16;
            int64_t lane = m->group == 32 ? g % 2 * 8 + c % 8 : c % 16;
            int64_t at = c / span * span + r * (span / 4) + c % span / 64 * 16 + lane;
            float sz[8];
            store(sz, widen((const half*)m->meta + (n / 4 * groups + g) * 8));
            int code = ((const uint16_t*)m->weight)[n / 4 * 4 * width + at] >> (4 * j) & 15;
            out[(n - from) * m->cols + c] = ((float)code - sz[4 + r]) * sz[r];
        }
    }
}

}  // extern "C"
