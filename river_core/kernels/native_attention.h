// Attention of a few query heads of one row over the cache rows of the KV head that they share.
//
// What one thread computes. Knows nothing of layers, caches or threads.
#pragma once

#include "native.h"

template <class T> static inline void fetch4(const T* from, const int64_t* at, int64_t dim) {
    for (int r = 0; r < 4; r++)
        for (int64_t d = 0; d < dim; d += 64 / sizeof(T)) __builtin_prefetch(from + at[r] + d);
}
// N query heads [N, dim] over the same `rows` cache rows (those at `index`, or the first ones), to N
// parts `width` apart: the values' sum under exp(scale * score - top), then `top` and the sum of
// the exponentials. In blocks, with a running maximum.
template <class T, int N>
static void attend(const float* q, const T* k, const T* v, int64_t stride, const int32_t* index,
                   int64_t rows, int64_t dim, float scale, float* out, int64_t width) {
    constexpr int block = 64;
    float p[N][block];
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
