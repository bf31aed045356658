// Shared parts of the kernels for interleaved layouts: eight weight rows alternate every 8 bytes, so that a vector
// holds COLS rows of two int32 lanes each.
#pragma once

#include "eagle_simd.h"

#ifdef EAGLE_SIMD

namespace eagle {

constexpr int COLS = LANES / 2;
constexpr int HALVES = 8 / COLS;

// Loads the scales of COLS rows, each into its row's two lanes.
#ifdef EAGLE_SIMD_512
inline vf twice(const uint16_t * d) {
    const __m256 v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) d));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                 _mm512_castps256_ps512(v));
}
#else
inline vf twice(const uint16_t * d) {
    const __m256 v = _mm256_castps128_ps256(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *) d)));
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
#endif

// Stores the sum of each row's two lanes.
inline void store_pairs(float * dst, vf acc) {
    float t[LANES];
    v_storef(t, acc);
    for (int c = 0; c < COLS; ++c) {
        dst[c] = t[2 * c] + t[2 * c + 1];
    }
}

}  // namespace eagle

#endif  // EAGLE_SIMD
