// The greedy choice among a row of logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace eagle {

// Index of the largest value, the lowest among equals. Searching for the value costs a vector comparison per few
// values, keeping its index beside it would cost a branch for each.
inline int64_t first_maximum(const float * x, int64_t n) {
    constexpr int64_t BLOCK = 1024, LANES = 16;
    int64_t best_block = 0;
    float best = -INFINITY;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t end = std::min(n, begin + BLOCK);
        float lane[LANES];
        std::fill(lane, lane + LANES, -INFINITY);
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES) {
            for (int64_t k = 0; k < LANES; k++) {
                lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
            }
        }
        float top = *std::max_element(lane, lane + LANES);
        for (; i < end; i++) {
            top = std::max(top, x[i]);
        }
        if (top > best) {
            best = top;
            best_block = begin;
        }
    }
    const int64_t i = std::find(x + best_block, x + n, best) - x;
    return i < n ? i : 0;  // nothing above -inf, or only NaN
}

}  // namespace eagle
