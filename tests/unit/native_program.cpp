// The kernels on made-up weights, as one program that needs no Python: it writes its results, fp32,
// to standard output. Built for two processors, the two outputs can be compared.
//
// The argument is the number of threads.

#include "../../river_core/kernels/native.cpp"

#include <cstdio>
#include <cstdlib>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

static uint64_t state = 88172645463325252ull;
static uint32_t random_bits() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}
static float uniform() { return (float)(random_bits() >> 8) * 0x1p-23f - 1.f; }  // in [-1, 1)
static std::vector<float> numbers(int64_t count, float scale = 1) {
    std::vector<float> out(count + 16);
    for (float& x : out) x = uniform() * scale;
    return out;
}
static std::vector<std::vector<char>> kept;  // what matrices point to
static char* keep(size_t bytes) {
    kept.emplace_back(bytes + 64);
    return (char*)(((uintptr_t)kept.back().data() + 63) / 64 * 64);
}
template <class T> static void fill(T* to, int64_t count, float scale) {
    for (int64_t i = 0; i < count; i += 8) {
        std::vector<float> x = numbers(8, scale);
        narrow(load<f32x8>(x.data()), to + i);
    }
}
static Matrix matrix(int64_t kind, int64_t group, int64_t rows, int64_t cols) {
    Matrix m{kind, group, rows, cols, nullptr, nullptr};
    if (kind < INT4) {
        char* w = keep((rows * cols + 8) * 4);
        if (kind == FP16) fill((half*)w, rows * cols, 0.1f);
        if (kind == BF16) fill((bhalf*)w, rows * cols, 0.1f);
        if (kind == FP32) fill((float*)w, rows * cols, 0.1f);
        m.weight = w;
        return m;
    }
    int64_t groups = groups_of(m), fours = (rows + 3) / 4;
    size_t bytes = fours * groups * group * (kind == INT4 ? 2 : 4);
    char* codes = keep(bytes);
    for (size_t i = 0; i < bytes; i++) codes[i] = (char)random_bits();
    char* meta = keep(fours * groups * 16 + 64);
    fill((half*)meta, fours * groups * 8, 0.02f);
    m.weight = codes;
    m.meta = meta;
    return m;
}
static void show(const float* x, int64_t count) { fwrite(x, sizeof(float), count, stdout); }

int main(int, char** arguments) {
    int threads = atoi(arguments[1]);
#ifdef _WIN32
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    const int64_t groups[] = {32, 64, 128};
    for (int64_t kind = FP16; kind <= INT8; kind++)
        for (int64_t group : groups) {
            if (kind < INT4 && group != 32) continue;
            Matrix m = matrix(kind, kind < INT4 ? 0 : group, 40, 384);
            for (int64_t count : {1, 3, 5}) {
                std::vector<float> x = numbers(count * m.cols), y(count * m.rows);
                river_linear(&m, x.data(), count, y.data(), threads);
                show(y.data(), y.size());
            }
            if (kind < INT4) continue;
            std::vector<float> whole(m.rows * m.cols);
            river_dequantise(&m, 0, m.rows, whole.data(), threads);
            show(whole.data(), whole.size());
        }
    const int64_t d = 128, heads = 4, kv_heads = 2, dim = 32, ffn = 256, capacity = 300;
    for (int64_t kind = FP16; kind <= INT8; kind++)
        for (int64_t stored = FP16; stored <= FP32; stored++) {
            int64_t group = kind < INT4 ? 0 : 64;
            Layer l{};
            l.qkv = matrix(kind, group, (heads + 2 * kv_heads) * dim, d);
            l.o = matrix(kind, group, d, heads * dim);
            l.gate_up = matrix(kind, group, 2 * ffn, d);
            l.down = matrix(kind, group, d, ffn);
            std::vector<float> norms = numbers(2 * d), bias = numbers(l.qkv.rows, 0.1f);
            std::vector<float> heads_norm = numbers((heads + kv_heads) * dim);
            l.attn_norm = norms.data();
            l.ffn_norm = norms.data() + d;
            l.qkv_bias = bias.data();
            l.qk_norm = heads_norm.data();
            l.heads = heads, l.kv_heads = kv_heads, l.head_dim = dim;
            l.gelu = stored == FP32;
            l.eps = 1e-5f, l.scale = 0.17f;
            std::vector<float> k = numbers(kv_heads * capacity * dim), v = k;
            std::vector<float> cos = numbers(capacity * dim), sin = numbers(capacity * dim);
            for (float* bank : {k.data(), v.data()})  // in place: no type is wider than fp32
                for (int64_t i = 0; i < kv_heads * capacity * dim; i += 8) {
                    f32x8 x = load<f32x8>(bank + i);
                    if (stored == FP16) narrow(x, (half*)bank + i);
                    if (stored == BF16) narrow(x, (bhalf*)bank + i);
                }
            int64_t count = -1;
            std::vector<int32_t> readable(capacity);
            Cache c{k.data(), v.data(), stored, capacity * dim, dim, cos.data(), sin.data(),
                    nullptr, readable.data(), &count};
            const Layer* layers[] = {&l, &l};
            const Cache* caches[] = {&c, &c};
            float cosines[2];
            for (int64_t position : {0, 5, 127, 128, 290}) {
                std::vector<float> h = numbers(d);
                river_layers(layers, caches, 2, h.data(), position, ATTENTION | FEED_FORWARD,
                             threads, cosines);
                show(h.data(), d);
                show(cosines, 2);
            }
        }
    std::vector<float> logits = numbers(5003, 9), logprobs(7), about(2);
    std::vector<int64_t> ids(7);
    river_choice(logits.data(), 5003, 17, 7, ids.data(), logprobs.data(), about.data());
    for (int i = 0; i < 7; i++) logprobs.push_back((float)ids[i]);
    show(logprobs.data(), 14);
    show(about.data(), 2);
}
