// Whole decoder layers for a single row, products of a few rows, and what logits say.
//
// Plain C interface, called through ctypes. Knows nothing of Python, torch, models or policies. No
// fast-math, no atomics in sums.

#include "native_choice.h"
#include "native_layer.h"

extern "C" {

// h [hidden] through `count` layers of the same sizes, or the given Parts of them, in place;
// cosines [count] of what went in and what came out.
void river_layers(const Layer* const* layers, const Cache* const* caches, int64_t count, float* h,
                  int64_t position, int64_t parts, int threads, float* cosines) {
    const Layer& l = *layers[0];
    int64_t d = padded(l.qkv.cols), qkv = padded(l.qkv.rows), mixed = padded(l.o.cols);
    int64_t own = own_size(layers, count);
    int64_t pieces = l.heads * chunks_of(position) * padded(l.head_dim + 2);
    float* at = scratch<0>(3 * d + qkv + mixed + pieces + l.gate_up.rows);
    Shared s{at + 2 * d, at + 3 * d, at + 3 * d + qkv, at + 3 * d + qkv + mixed, nullptr};
    s.gate_up = s.parts + pieces;
    for (int64_t i = 0; i < count; i++)
        if (*caches[i]->count >= 0) caches[i]->readable[*caches[i]->count] = (int32_t)position;
    Barrier all;
    together(threads, [&] {
        float* mine = scratch<1>(own);
        bool first = this_thread() == 0;
        for (int64_t i = 0; i < count; i++) {
            float* before = at + i % 2 * d;  // a slower thread may still read the other one
            if (first) memcpy(before, h, l.qkv.cols * sizeof(float));
            if (parts & ATTENTION) run_attention(*layers[i], *caches[i], h, position, s, mine, all);
            if (parts & FEED_FORWARD) run_feed_forward(*layers[i], h, s, mine, all);
            if (first) cosines[i] = cosine(before, h, l.qkv.cols);
        }
    });
}

// Keys and values that `count` layers would write for a row whose hidden state is h [hidden].
void river_keys_values(const Layer* const* layers, const Cache* const* caches, int64_t count,
                       const float* h, int64_t position, int threads) {
    float* qkv = scratch<0>(padded(layers[0]->qkv.rows));
    int64_t own = own_size(layers, count);
    Barrier all;
    together(threads, [&] {
        float* mine = scratch<1>(own);
        for (int64_t i = 0; i < count; i++)
            run_keys_values(*layers[i], *caches[i], h, position, qkv, mine, all);
    });
}

// logits [rows] of the normed h [cols].
void river_head(const Matrix* m, const float* norm, double eps, const float* h, float* logits,
                int threads) {
    together(threads, [&] {
        float *normed = scratch<1>(padded(m->cols) + scratch_of(*m));
        rms_norm(h, norm, m->cols, (float)eps, normed);
        Range mine = share(m->rows, 8);
        rows(*m, prepare(*m, normed, normed + padded(m->cols)), mine.from, mine.to, logits);
    });
}

// What logits [count] say (native_choice.h); `token` below 0 asks for the best one.
void river_choice(const float* logits, int64_t count, int64_t token, int64_t wanted, int64_t* ids,
                  float* logprobs, float* about) {
    choose(logits, count, token, wanted, ids, logprobs, about);
}

// y [count, rows] of x [count, cols], count <= 16: weights are read from memory once.
void river_linear(const Matrix* m, const float* x, int64_t count, float* y, int threads) {
    together(threads, [&] {
        Input in[16];
        float* packed = scratch<1>(count * padded(scratch_of(*m)));
        for (int64_t i = 0; i < count; i++)
            in[i] = prepare(*m, x + i * m->cols, packed + i * padded(scratch_of(*m)));
        float* out[16];
        for (int64_t i = 0; i < count; i++) out[i] = y + i * m->rows;
        Range mine = share(m->rows, 8);
        int64_t block = count <= (coded(*m) ? 1 : 4) ? m->rows : 8;
        for (int64_t n = mine.from; n < mine.to; n += block)
            rows_each(*m, in, count, n, n + block < mine.to ? n + block : mine.to, out);
    });
}

// The weights that the coded rows from..to-1 stand for, fp32 [to - from, cols].
void river_dequantise(const Matrix* m, int64_t from, int64_t to, float* out, int threads) {
    int64_t groups = groups_of(*m), span = m->group < 64 ? 64 : m->group;
    together(threads, [&] {
        Range mine = share(to - from, 1);
        for (int64_t n = from + mine.from; n < from + mine.to; n++) {
            int64_t r = n % 4, block = n / 4 * groups;
            const uint16_t* words =
                (const uint16_t*)m->weight + block * m->group + r * (span / 4);
            const int8_t* bytes = (const int8_t*)m->weight + block * 4 * m->group + r * m->group;
            for (int64_t c = 0; c < m->cols; c += 8) {  // eight columns lie side by side
                int64_t g = c / m->group, j = m->group == 32 ? c % 32 / 8 : c % 64 / 16;
                int64_t lane = m->group == 32 ? g % 2 * 8 : c % 16;
                f32x8 code;
                if (m->kind == INT8) {
                    code = __builtin_convertvector(
                        load<s8x8>(bytes + g * 4 * m->group + c % m->group), f32x8);
                } else {
                    u16x8 w = load<u16x8>(words + c / span * span + c % span / 64 * 16 + lane);
                    code = __builtin_convertvector(w >> (int)(4 * j) & 15, f32x8);
                }
                float sz[8];
                store(sz, widen((const half*)m->meta + (block + g) * 8));
                store(out + (n - from) * m->cols + c, (code - sz[4 + r]) * sz[r]);
            }
        }
    });
}

}  // extern "C"
