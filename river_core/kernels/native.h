// What one thread computes: rows of a matrix (fp16, bf16, fp32, 4-bit) times a vector, and norms.
//
// Written with GCC's vector types, so that it compiles for any processor; intrinsics only where the
// compiler does badly. Sums are fp32. Knows nothing of threads, layers or models.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int16_t s16x8 __attribute__((vector_size(16)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
struct half { uint16_t bits; };
struct bhalf { uint16_t bits; };

enum Kind : int64_t { FP16 = 0, BF16 = 1, FP32 = 2, INT4 = 3 };
struct Matrix {  // weight [rows, cols] dense, or packed as NativeInt4 says
    int64_t kind, group, rows, cols;
    const void *weight, *meta;
};

template <class V> static inline V load(const void* p) { V v; memcpy(&v, p, sizeof v); return v; }
template <class V> static inline void store(void* p, V v) { memcpy(p, &v, sizeof v); }
static inline f32x8 all(float x) { return f32x8{x, x, x, x, x, x, x, x}; }
static inline float sum(f32x8 a) {
#if defined(__AVX2__)
    __m128 s = _mm256_castps256_ps128((__m256)a) + _mm256_extractf128_ps((__m256)a, 1);
    s += _mm_movehl_ps(s, s);
    return _mm_cvtss_f32(s + _mm_movehdup_ps(s));
#else
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
#endif
}
static inline f32x4 sum4(const f32x8* a) {  // the sums of four
#if defined(__AVX2__)
    __m256 ab = _mm256_hadd_ps((__m256)a[0], (__m256)a[1]);
    __m256 all4 = _mm256_hadd_ps(ab, _mm256_hadd_ps((__m256)a[2], (__m256)a[3]));
    return (f32x4)(_mm256_castps256_ps128(all4) + _mm256_extractf128_ps(all4, 1));
#else
    return f32x4{sum(a[0]), sum(a[1]), sum(a[2]), sum(a[3])};
#endif
}
static inline f32x8 larger(f32x8 a, f32x8 b) { return a > b ? a : b; }
static inline float largest(f32x8 a) {
    float m = a[0];
    for (int i = 1; i < 8; i++) m = a[i] > m ? a[i] : m;
    return m;
}
static inline f32x8 exp8(f32x8 x) {  // relative error about 1e-7; 0 below -87, e^88 above 88
    x = x > 88.f ? all(88) : x;
    f32x8 n = (x * 1.44269504f + 12582912.f) - 12582912.f;
    f32x8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    f32x8 p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    i32x8 scale = (__builtin_convertvector(n, i32x8) + 127) << 23;
    return x < -87.f ? all(0) : p * (f32x8)scale;
}

// ---- eight numbers of a storage type, to and from fp32 ----
static inline f32x8 widen(const float* p) { return load<f32x8>(p); }
static inline f32x8 widen(const bhalf* p) {
    return (f32x8)(__builtin_convertvector(load<u16x8>(p), u32x8) << 16);
}
static inline f32x8 widen(const half* p) {
#if defined(__F16C__)
    return (f32x8)_mm256_cvtph_ps(load<__m128i>(p));
#elif defined(__aarch64__)
    f32x8 v;
    for (int i = 0; i < 8; i++) v[i] = (float)((const __fp16*)p)[i];
    return v;
#else
    u32x8 h = __builtin_convertvector(load<u16x8>(p), u32x8);
    return (f32x8)((u32x8)((f32x8)((h & 0x7FFF) << 13) * 0x1p112f) | (h & 0x8000) << 16);
#endif
}
static inline void narrow(f32x8 x, float* p) { store(p, x); }
static inline void narrow(f32x8 x, bhalf* p) {
    u32x8 b = (u32x8)x;
    store(p, __builtin_convertvector((b + 0x7FFF + (b >> 16 & 1)) >> 16, u16x8));
}
static inline void narrow(f32x8 x, half* p) {
#if defined(__F16C__)
    store(p, _mm256_cvtps_ph((__m256)x, 0));
#elif defined(__aarch64__)
    for (int i = 0; i < 8; i++) ((__fp16*)p)[i] = (__fp16)x[i];
#else  // add a number so large that the addition rounds at the last bit that fp16 keeps
    for (int i = 0; i < 8; i++) {
        uint32_t b = ((u32x8)x)[i], twice = b + b, bias = twice & 0xFF000000;
        if (bias < 0x71000000) bias = 0x71000000;
        bias = (bias >> 1) + 0x07800000;
        float f = load<float>(&bias) + (x[i] < 0 ? -x[i] : x[i]) * 0x1p112f * 0x1p-110f;
        uint32_t r = load<uint32_t>(&f), h = (r >> 13 & 0x7C00) + (r & 0xFFF);
        p[i].bits = (uint16_t)(b >> 16 & 0x8000) | (uint16_t)(twice > 0xFF000000 ? 0x7E00 : h);
    }
#endif
}

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

// ---- 4-bit rows ----
// Codes [rows / 4, spans, 4, chunks of 64 columns, 16 lanes of 16 bits]: nibble j of lane i is
// column 16 j + i of the chunk; with group 32 lanes 0-7 hold one group, column 8 j + i, and lanes
// 8-15 the next. Meta fp16 [rows / 4, groups, 8]: four scales, four zeros. A span is a group, or
// two groups of 32. Activations become 16-bit integers with one scale per group (error 1.5e-5 of
// the group's largest), because integer dot products need half the instructions of fp32 ones;
// within a group all sums are then exact.
struct Input {
    const float* x;        // what dense rows read
    const int16_t* q;      // what 4-bit rows read: x = q * scale
    const float *scale, *total;  // per group; total = sum of q
};
static int64_t groups_of(const Matrix& m) {
    int64_t groups = m.cols / m.group;
    return m.group == 32 ? (groups + 1) / 2 * 2 : groups;
}
static int64_t scratch_of(const Matrix& m) {  // in floats
    return m.kind == INT4 ? groups_of(m) * (2 + m.group / 2) : 0;
}
static Input prepare(const Matrix& m, const float* x, float* scratch) {
    if (m.kind != INT4) return {x, nullptr, nullptr, nullptr};
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
            int64_t at = m.group == 32 ? g / 2 * 64 + i * 2 + g % 2 * 8 : g * m.group + i;
            store(q + at, __builtin_convertvector(n, s16x8));
        }
        int32_t t = 0;
        for (int i = 0; i < 8; i++) t += sums[i];
        scale[g] = most / 32767 + sum(bad);
        total[g] = (float)t;
    }
    return {x, q, scale, total};
}
static inline i32x8 dot16(u16x16 codes, const int16_t* x) {  // pairs of products, added
#if defined(__AVX2__)
    return (i32x8)_mm256_madd_epi16((__m256i)codes, load<__m256i>(x));
#else
    i32x8 d;
    for (int i = 0; i < 8; i++) d[i] = codes[2 * i] * x[2 * i] + codes[2 * i + 1] * x[2 * i + 1];
    return d;
#endif
}
static inline i32x8 chunk_dot(const uint16_t* codes, const int16_t* x) {
    u16x16 w = load<u16x16>(codes);
    return (dot16(w & 15, x) + dot16(w >> 4 & 15, x + 16)) +
           (dot16(w >> 8 & 15, x + 32) + dot16(w >> 12, x + 48));
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
static void rows(const Matrix& m, const Input& in, int64_t from, int64_t to, float* y) {
    switch (m.kind) {
        case FP16: return dense_rows((const half*)m.weight, m.cols, in.x, from, to, y);
        case BF16: return dense_rows((const bhalf*)m.weight, m.cols, in.x, from, to, y);
        case FP32: return dense_rows((const float*)m.weight, m.cols, in.x, from, to, y);
        default:
            if (m.group == 32) return int4_rows<32>(m, in, from, to, y);
            if (m.group == 64) return int4_rows<64>(m, in, from, to, y);
            return int4_rows<128>(m, in, from, to, y);
    }
}

// ---- the other parts of a layer ----
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
