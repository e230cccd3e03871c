// What one thread computes: rows of a matrix (fp16, bf16, fp32, 4-bit, 8-bit) times vectors.
//
// The sum of a row does not depend on how many vectors are multiplied at once, nor on which rows a
// thread takes.
#pragma once

#include "native.h"

enum Kind : int64_t { FP16 = 0, BF16 = 1, FP32 = 2, INT4 = 3, INT8 = 4 };
struct Matrix {  // weight [rows, cols] dense, or packed as native.py does
    int64_t kind, group, rows, cols;
    const void *weight, *meta;
};

// ---- dense rows: one row at a time, a cache line per step, so that memory is read in order ----
template <class T>
static void dense_rows(const T* w, int64_t k, const float* x, int64_t from, int64_t to, float* y) {
    constexpr int line = 64 / sizeof(T);
    for (int64_t n = from; n < to; n++) {
        const T* row = w + n * k;
        f32x8 acc[4] = {};
        int64_t i = 0;
        for (; i + line <= k; i += line) {
            __builtin_prefetch((const char*)(row + i) + 4096);
#pragma GCC unroll 4
            for (int j = 0; j < line / 8; j++)
                acc[j] += widen(row + i + 8 * j) * load<f32x8>(x + i + 8 * j);
        }
        for (; i + 8 <= k; i += 8) acc[0] += widen(row + i) * load<f32x8>(x + i);
        if (i < k) {
            T last[8] = {};
            float xs[8] = {};
            memcpy(last, row + i, (k - i) * sizeof(T));
            memcpy(xs, x + i, (k - i) * sizeof(float));
            acc[1] += widen(last) * load<f32x8>(xs);
        }
        y[n] = sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
    }
}

// The same for N vectors at once: a row is converted once and every sum keeps its order. Pass j
// over a row adds up accumulator j of all vectors, so that N of them fit into registers.
template <class T, int N>
static void dense_rows_of(const T* w, int64_t k, const float* const* x, int64_t from, int64_t to,
                          float* const* y) {
    constexpr int line = 64 / sizeof(T);
    int64_t whole = k / line * line;
    for (int64_t n = from; n < to; n++) {
        const T* row = w + n * k;
        f32x8 acc[4][N] = {};
        for (int j = 0; j < line / 8; j++) {
            f32x8 one[N] = {};
            for (int64_t i = 8 * j; i < whole; i += line) {
                if (j == 0) __builtin_prefetch((const char*)(row + i) + 4096);
                f32x8 weight = widen(row + i);
#pragma GCC unroll 4
                for (int r = 0; r < N; r++) one[r] += weight * load<f32x8>(x[r] + i);
            }
            for (int r = 0; r < N; r++) acc[j][r] = one[r];
        }
        int64_t i = whole;
        for (; i + 8 <= k; i += 8)
            for (int r = 0; r < N; r++) acc[0][r] += widen(row + i) * load<f32x8>(x[r] + i);
        if (i < k) {
            T last[8] = {};
            memcpy(last, row + i, (k - i) * sizeof(T));
            for (int r = 0; r < N; r++) {
                float xs[8] = {};
                memcpy(xs, x[r] + i, (k - i) * sizeof(float));
                acc[1][r] += widen(last) * load<f32x8>(xs);
            }
        }
        for (int r = 0; r < N; r++)
            y[r][n] = sum((acc[0][r] + acc[1][r]) + (acc[2][r] + acc[3][r]));
    }
}

// ---- coded rows ----
// 4-bit codes [rows / 4, spans, 4, chunks of 64 columns, 16 lanes of 16 bits]: nibble j of lane i is
// column 16 j + i of the chunk; with group 32 lanes 0-7 hold one group, column 8 j + i, and lanes
// 8-15 the next. Meta fp16 [rows / 4, groups, 8]: four scales, four zeros. A span is a group, or
// two groups of 32. 8-bit codes, less 128, int8 [rows / 4, groups, 4, group], with the same meta,
// the zeros less 128 too: fp16 holds them finer there. Activations become 16-bit integers with one scale per group (error 1.5e-5 of
// the group's largest), because integer dot products need half the instructions of fp32 ones;
// within a group all sums are then exact: at most 128 * 128 * 32767, an eighth of it in a lane.
struct Input {
    const float* x;        // what dense rows read
    const int16_t* q;      // what coded rows read: x = q * scale
    const float *scale, *total;  // per group; total = sum of q
};
static bool coded(const Matrix& m) { return m.kind >= INT4; }
static bool paired(const Matrix& m) { return m.kind == INT4 && m.group == 32; }
static int64_t groups_of(const Matrix& m) {
    int64_t groups = m.cols / m.group;
    return paired(m) ? (groups + 1) / 2 * 2 : groups;
}
static int64_t scratch_of(const Matrix& m) {  // in floats
    return coded(m) ? groups_of(m) * (2 + m.group / 2) : 0;
}
static Input prepare(const Matrix& m, const float* x, float* scratch) {
    if (!coded(m)) return {x, nullptr, nullptr, nullptr};
    int64_t groups = groups_of(m);
    float *scale = scratch, *total = scratch + groups;
    int16_t* q = (int16_t*)(total + groups);
    memset(scratch, 0, scratch_of(m) * sizeof(float));
    for (int64_t g = 0; g < m.cols / m.group; g++) {
        const float* p = x + g * m.group;
        f32x8 top = all(1e-30f), bad = {};
        for (int64_t i = 0; i < m.group; i += 8) {
            f32x8 v = load<f32x8>(p + i);
            bad += v * 0.f;  // NaN when v is not finite
            top = larger((f32x8)((u32x8)v & 0x7FFFFFFF), top);
        }
        float most = largest(top), inverse = 32767 / most;
        i32x8 sums = {};
        for (int64_t i = 0; i < m.group; i += 8) {
            i32x8 n = (i32x8)(load<f32x8>(p + i) * inverse + 12582912.f) - 0x4B400000;
            sums += n;
            int64_t at = paired(m) ? g / 2 * 64 + i * 2 + g % 2 * 8 : g * m.group + i;
            store(q + at, __builtin_convertvector(n, s16x8));
        }
        int32_t t = 0;
        for (int i = 0; i < 8; i++) t += sums[i];
        scale[g] = most / 32767 + sum(bad);
        total[g] = (float)t;
    }
    return {x, q, scale, total};
}
static inline i32x8 dot16(s16x16 codes, const int16_t* x) {  // products, added in pairs
#if defined(__AVX2__)
    return (i32x8)_mm256_madd_epi16((__m256i)codes, load<__m256i>(x));
#elif defined(__aarch64__)  // pairs are four lanes apart here; the halves stay apart
    int16x8_t c[2];
    int32x4_t d[2];
    memcpy(c, &codes, sizeof c);
    for (int i = 0; i < 2; i++) {
        int16x8_t v = vld1q_s16(x + 8 * i);
        d[i] = vmlal_high_s16(vmull_s16(vget_low_s16(c[i]), vget_low_s16(v)), c[i], v);
    }
    return load<i32x8>(d);
#else
    i32x8 d;
    for (int i = 0; i < 8; i++) d[i] = codes[2 * i] * x[2 * i] + codes[2 * i + 1] * x[2 * i + 1];
    return d;
#endif
}
static inline i32x8 chunk_dot(const uint16_t* codes, const int16_t* x) {
    u16x16 w = load<u16x16>(codes);
    return (dot16((s16x16)(w & 15), x) + dot16((s16x16)(w >> 4 & 15), x + 16)) +
           (dot16((s16x16)(w >> 8 & 15), x + 32) + dot16((s16x16)(w >> 12), x + 48));
}
template <int G>
static void int4_rows(const Matrix& m, const Input& in, int64_t from, int64_t to, float* y) {
    constexpr int span = G < 64 ? 64 : G;
    int64_t groups = groups_of(m), spans = groups * G / span;
    for (int64_t n = from; n < to; n += 4) {
        const uint16_t* codes = (const uint16_t*)m.weight + n * spans * (span / 4);
        const half* meta = (const half*)m.meta + n * groups * 2;
        f32x8 acc[4] = {};
        f32x4 offset = {};
        for (int64_t s = 0; s < spans; s++, codes += span) {
            for (int i = 0; i < span; i += 32) __builtin_prefetch((const char*)(codes + i) + 2048);
            f32x4 scale[2];
            for (int i = 0; i < (G < 64 ? 2 : 1); i++, meta += 8) {
                int64_t g = G < 64 ? 2 * s + i : s;
                float sz[8];
                store(sz, widen(meta));
                scale[i] = load<f32x4>(sz) * in.scale[g];
                offset += scale[i] * (load<f32x4>(sz + 4) * in.total[g]);
            }
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                i32x8 d = chunk_dot(codes + r * span / 4, in.q + s * span);
                if (G > 64) d += chunk_dot(codes + r * span / 4 + 16, in.q + s * span + 64);
                float a = scale[0][r], b = G < 64 ? scale[1][r] : a;
                acc[r] += f32x8{a, a, a, a, b, b, b, b} * __builtin_convertvector(d, f32x8);
            }
        }
        offset = sum4(acc) - offset;
        memcpy(y + n, &offset, (m.rows - n < 4 ? m.rows - n : 4) * sizeof(float));
    }
}
static inline s16x16 widen(const int8_t* p) {
#if defined(__AVX2__)
    return (s16x16)_mm256_cvtepi8_epi16(load<__m128i>(p));
#else
    return __builtin_convertvector(load<s8x16>(p), s16x16);
#endif
}
template <int G>
static void int8_rows(const Matrix& m, const Input& in, int64_t from, int64_t to, float* y) {
    int64_t groups = m.cols / G;
    for (int64_t n = from; n < to; n += 4) {
        const int8_t* codes = (const int8_t*)m.weight + n * m.cols;
        const half* meta = (const half*)m.meta + n * groups * 2;
        f32x8 acc[4] = {};
        f32x4 offset = {};
        for (int64_t g = 0; g < groups; g++, codes += 4 * G, meta += 8) {
            for (int i = 0; i < 4 * G; i += 64) __builtin_prefetch(codes + i + 4096);
            float sz[8];
            store(sz, widen(meta));
            f32x4 scale = load<f32x4>(sz) * in.scale[g];
            offset += scale * (load<f32x4>(sz + 4) * in.total[g]);
            i32x8 d[4] = {};
            for (int i = 0; i < G; i += 16)
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++)
                    d[r] += dot16(widen(codes + r * G + i), in.q + g * G + i);
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++)
                acc[r] += scale[r] * __builtin_convertvector(d[r], f32x8);
        }
        offset = sum4(acc) - offset;
        memcpy(y + n, &offset, (m.rows - n < 4 ? m.rows - n : 4) * sizeof(float));
    }
}
static void rows(const Matrix& m, const Input& in, int64_t from, int64_t to, float* y) {
    switch (m.kind) {
        case FP16: return dense_rows((const half*)m.weight, m.cols, in.x, from, to, y);
        case BF16: return dense_rows((const bhalf*)m.weight, m.cols, in.x, from, to, y);
        case FP32: return dense_rows((const float*)m.weight, m.cols, in.x, from, to, y);
        case INT8:
            if (m.group == 32) return int8_rows<32>(m, in, from, to, y);
            if (m.group == 64) return int8_rows<64>(m, in, from, to, y);
            return int8_rows<128>(m, in, from, to, y);
        default:
            if (m.group == 32) return int4_rows<32>(m, in, from, to, y);
            if (m.group == 64) return int4_rows<64>(m, in, from, to, y);
            return int4_rows<128>(m, in, from, to, y);
    }
}

template <class T>
static void dense_rows_each(const T* w, int64_t k, const float* const* x, int64_t count,
                            int64_t from, int64_t to, float* const* y) {
    for (; count >= 4; count -= 4, x += 4, y += 4) dense_rows_of<T, 4>(w, k, x, from, to, y);
    if (count == 3) dense_rows_of<T, 3>(w, k, x, from, to, y);
    if (count == 2) dense_rows_of<T, 2>(w, k, x, from, to, y);
    if (count == 1) dense_rows(w, k, x[0], from, to, y[0]);
}
static void rows_each(const Matrix& m, const Input* in, int64_t count, int64_t from, int64_t to,
                      float* const* y) {
    const float* x[16];
    for (int64_t i = 0; i < count; i++) x[i] = in[i].x;
    switch (m.kind) {
        case FP16: return dense_rows_each((const half*)m.weight, m.cols, x, count, from, to, y);
        case BF16: return dense_rows_each((const bhalf*)m.weight, m.cols, x, count, from, to, y);
        case FP32: return dense_rows_each((const float*)m.weight, m.cols, x, count, from, to, y);
        default:
            for (int64_t i = 0; i < count; i++) rows(m, in[i], from, to, y[i]);
    }
}
