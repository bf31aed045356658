#include "eagle_pack_k.h"

#ifdef EAGLE_SIMD

namespace eagle {

size_t act_size_k(const kernel &, int64_t n) {
    return (size_t) (n / 256) * sizeof(act256);
}

static float peak256(const float * x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 top = _mm256_setzero_ps();
    for (int k = 0; k < 256; k += 8) {
        top = _mm256_max_ps(top, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + k)));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// Converts 16 floats to 16 bytes and returns their sum.
static int16_t pack16(const float * x, __m256 inv, int8_t * q) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inv));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inv));
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    const __m128i lo = _mm256_castsi256_si128(w), hi = _mm256_extracti128_si256(w, 1);
    _mm_storeu_si128((__m128i *) q, _mm_packs_epi16(lo, hi));
    __m128i s = _mm_madd_epi16(_mm_add_epi16(lo, hi), _mm_set1_epi16(1));
    s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 1));
    return (int16_t) _mm_cvtsi128_si32(s);
}

void pack_k(const kernel &, const float * x, void * act, int64_t, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
        act256 & y = ((act256 *) act)[b];
        const float peak = peak256(x + 256 * b);
        const __m256 inv = _mm256_set1_ps(peak > 0.0f ? 127.0f / peak : 0.0f);
        for (int k = 0; k < 16; ++k) {
            y.sums16[k] = pack16(x + 256 * b + 16 * k, inv, y.qs + 16 * k);
        }
        for (int k = 0; k < 8; ++k) {
            y.sums32[k] = (int16_t) (y.sums16[2 * k] + y.sums16[2 * k + 1]);
        }
        y.d = peak / 127.0f;
    }
}

}  // namespace eagle

#endif  // EAGLE_SIMD
