// What a row of logits says: the best ids, log-probabilities and the entropy, in two readings.
#pragma once

#include "native.h"

// ids, logprobs [wanted]: the best, equals by the lower id; about: log-probability of `token` (of
// the best where it is below 0) and the entropy, in nats. Not finite where the logits are not.
static void choose(const float* x, int64_t count, int64_t token, int64_t wanted, int64_t* ids,
                   float* logprobs, float* about) {
    constexpr int64_t block = 128;
    int64_t kept = 0;
    for (int64_t from = 0; from < count; from += block) {
        int64_t to = from + block < count ? from + block : count;
        if (kept == wanted && to - from == block) {
            f32x8 most = load<f32x8>(x + from);
            for (int64_t i = from + 8; i < to; i += 8) most = larger(load<f32x8>(x + i), most);
            if (!(largest(most) > logprobs[kept - 1])) continue;
        }
        for (int64_t i = from; i < to; i++) {
            if (kept == wanted && !(x[i] > logprobs[kept - 1])) continue;
            if (kept < wanted) kept++;
            int64_t place = kept - 1;
            for (; place > 0 && x[i] > logprobs[place - 1]; place--) {
                ids[place] = ids[place - 1];
                logprobs[place] = logprobs[place - 1];
            }
            ids[place] = i;
            logprobs[place] = x[i];
        }
    }
    float top = logprobs[0];
    f32x8 totals = {}, weighted = {}, bad = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        f32x8 below = load<f32x8>(x + i) - top;
        bad += below != below ? all(1) : all(0);
        below = larger(below, all(-1e30f));  // -inf weighs nothing, and 0 x -inf would be NaN
        f32x8 weight = exp8(below);
        totals += weight;
        weighted += weight * below;
    }
    float total = sum(totals), mean = sum(weighted), faults = sum(bad);
    for (; i < count; i++) {
        float below = x[i] - top;
        faults += below != below;
        below = below > -1e30f ? below : -1e30f;
        total += expf(below);
        mean += expf(below) * below;
    }
    float log_total = logf(total);
    if (faults > 0) log_total = NAN;
    for (int64_t n = 0; n < kept; n++) logprobs[n] = logprobs[n] - top - log_total;
    about[0] = token < 0 ? logprobs[0] : x[token] - top - log_total;
    about[1] = log_total - mean / total;
}
