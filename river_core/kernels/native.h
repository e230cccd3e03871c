// Vectors of eight fp32 numbers, their conversions and exponentials, and the small parts of a layer.
//
// Written with GCC's vector types, so that it compiles for any processor; intrinsics only where the
// compiler does badly. Sums are fp32. Knows nothing of matrices, threads or models.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int8_t s8x8 __attribute__((vector_size(8)));
typedef int8_t s8x16 __attribute__((vector_size(16)));
typedef int16_t s16x16 __attribute__((vector_size(32)));
typedef int16_t s16x8 __attribute__((vector_size(16)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
struct half { uint16_t bits; };
struct bhalf { uint16_t bits; };

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

// ---- the other parts of a layer ----
static float rms_scale(const float* x, int64_t d, float eps) {  // 1 / rms(x)
    f32x8 a = {}, b = {};
    for (int64_t i = 0; i + 16 <= d; i += 16) {
        a += load<f32x8>(x + i) * load<f32x8>(x + i);
        b += load<f32x8>(x + i + 8) * load<f32x8>(x + i + 8);
    }
    if (d % 16) a += load<f32x8>(x + d - 8) * load<f32x8>(x + d - 8);
    return 1 / sqrtf(sum(a + b) / d + eps);
}
static void scaled(const float* x, float scale, const float* weight, int64_t d, float* y) {
    for (int64_t i = 0; i < d; i++) y[i] = x[i] * scale * weight[i];
}
static void rms_norm(const float* x, const float* weight, int64_t d, float eps, float* y) {
    scaled(x, rms_scale(x, d, eps), weight, d, y);
}
static inline f32x8 silu(f32x8 x) { return x / (1.f + exp8(-x)); }
static inline f32x8 gelu_tanh(f32x8 x) {  // x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u))
    return x / (1.f + exp8(x * (-1.595769122f - 0.071354816f * x * x)));
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
