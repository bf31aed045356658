#include "eagle_norms.h"

#include "eagle_simd.h"

#ifdef EAGLE_SIMD_512
using vd = __m512d;
static inline void add_squares(vd (&sums)[4], const float * x) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    const __m512 squares[2] = {_mm512_mul_ps(a, a), _mm512_mul_ps(b, b)};
    for (int i = 0; i < 2; ++i) {
        sums[2 * i] = _mm512_add_pd(sums[2 * i], _mm512_cvtps_pd(_mm512_castps512_ps256(squares[i])));
        sums[2 * i + 1] = _mm512_add_pd(sums[2 * i + 1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(squares[i], 1)));
    }
}
#elif defined(EAGLE_SIMD)
using vd = __m256d;
static inline void add_squares(vd (&sums)[4], const float * x) {
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    const __m256 squares[2] = {_mm256_mul_ps(a, a), _mm256_mul_ps(b, b)};
    for (int i = 0; i < 2; ++i) {
        sums[2 * i] = _mm256_add_pd(sums[2 * i], _mm256_cvtps_pd(_mm256_castps256_ps128(squares[i])));
        sums[2 * i + 1] = _mm256_add_pd(sums[2 * i + 1], _mm256_cvtps_pd(_mm256_extractf128_ps(squares[i], 1)));
    }
}
#endif

double eagle_sum_of_squares(int64_t n, const float * x) {
    double total = 0;
    int64_t i = 0;
#ifdef EAGLE_SIMD
    vd sums[4] = {};
    for (; i + 2 * eagle::LANES <= n; i += 2 * eagle::LANES) {
        add_squares(sums, x + i);
    }
    double lanes[4 * sizeof(vd) / sizeof(double)];
    memcpy(lanes, sums, sizeof(lanes));
    for (double sum : lanes) {
        total += sum;
    }
#endif
    for (; i < n; ++i) {
        total += x[i] * x[i];
    }
    return total;
}
