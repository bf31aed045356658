// Maximum of a row of logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace eagle {

// Returns the largest of n values, -inf if n is 0. NaN counts as -inf.
inline float maximum(const float * x, int64_t n) {
    constexpr int64_t LANES = 16;
    float lane[LANES];
    std::fill(lane, lane + LANES, -INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int64_t k = 0; k < LANES; k++) {
            lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
        }
    }
    float top = *std::max_element(lane, lane + LANES);
    for (; i < n; i++) {
        top = std::max(top, x[i]);
    }
    return top;
}

// Returns the lowest index of the largest value. Finding the value first and then searching for it is vectorized;
// tracking the index along with the maximum would need a branch per value.
inline int64_t first_maximum(const float * x, int64_t n) {
    constexpr int64_t BLOCK = 1024;
    int64_t best_block = 0;
    float best = -INFINITY;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const float top = maximum(x + begin, std::min(n - begin, BLOCK));
        if (top > best) {
            best = top;
            best_block = begin;
        }
    }
    const int64_t i = std::find(x + best_block, x + n, best) - x;
    return i < n ? i : 0;  // all values are -inf or NaN
}

}  // namespace eagle
