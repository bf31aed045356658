// Packed activation rows for the integer kernels: signed bytes with a float scale per block.
#pragma once

#include "eagle_simd.h"

#ifdef EAGLE_SIMD

namespace eagle {

// Rows of 32-value blocks: all scales, then (pairs only) two int32 per block, then the bytes.
struct act32 {
    static size_t scales(int64_t n) { return (size_t) (n / 32 * sizeof(float) + 63) / 64 * 64; }
    static size_t pairs(int64_t n) { return (size_t) (n / 32 * 2 * sizeof(int32_t) + 63) / 64 * 64; }
};

// A block of 256 values.
struct alignas(64) act256 {
    int8_t qs[256];
    int16_t sums16[16];  // of 16 values each
    int16_t sums32[8];   // of 32 values each
    float d;
};

// Converts 32 floats to 32 bytes in [-127, 127] and returns the scale.
inline float pack32(const float * x, int8_t * q) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 v[4];
    __m256 top = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_ps(top, _mm256_andnot_ps(sign, v[i]));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    const float peak = _mm_cvtss_f32(m);
    const __m256 inv = _mm256_set1_ps(peak > 0.0f ? 127.0f / peak : 0.0f);
    __m256i k[4];
    for (int i = 0; i < 4; ++i) {
        k[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv));
    }
    const __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(k[0], k[1]), _mm256_packs_epi32(k[2], k[3]));
    _mm256_storeu_si256((__m256i *) q, _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    return peak / 127.0f;
}

}  // namespace eagle

#endif  // EAGLE_SIMD
