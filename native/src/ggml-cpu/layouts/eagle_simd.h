// Vectors of the widest instruction set of this build, so that each kernel is written once. There are three builds:
// AVX-512-VNNI (16 lanes), AVX2 with AVX-VNNI (8 lanes) and plain AVX2 (8 lanes).
#pragma once

#include <stdint.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#define EAGLE_SIMD_512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define EAGLE_SIMD_256 1
#endif

#if defined(EAGLE_SIMD_512) || defined(EAGLE_SIMD_256)
#define EAGLE_SIMD 1

#include <immintrin.h>

#include <array>
#include <cstring>

#if defined(__GNUC__)
#define EAGLE_INLINE __attribute__((always_inline))
#else
#define EAGLE_INLINE
#endif

// Kernels use explicit fused multiply-adds everywhere. They must not leave contraction to the compiler, because two
// instantiations of a template could then round differently.
namespace eagle {

#ifdef EAGLE_SIMD_512

using vi = __m512i;
using vf = __m512;
constexpr int LANES = 16;
constexpr int TILE_ROWS = 8;  // activation rows whose accumulators fit the register file

inline vi v_load(const void * p) {
    return _mm512_loadu_si512(p);
}
inline void v_store(void * p, vi a) {
    _mm512_storeu_si512(p, a);
}
inline vi v_zero() {
    return _mm512_setzero_si512();
}
inline vi v_set1_8(int v) {
    return _mm512_set1_epi8((char) v);
}
inline vi v_set1_16(int v) {
    return _mm512_set1_epi16((short) v);
}
inline vi v_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
inline vi v_or(vi a, vi b) {
    return _mm512_or_si512(a, b);
}
inline vi v_xor(vi a, vi b) {
    return _mm512_xor_si512(a, b);
}
inline vi v_sub32(vi a, vi b) {
    return _mm512_sub_epi32(a, b);
}
inline vi v_sub8(vi a, vi b) {
    return _mm512_sub_epi8(a, b);
}
template <int N>
inline vi v_sra16(vi a) {
    return _mm512_srai_epi16(a, N);
}
template <int N>
inline vi v_shr16(vi a) {
    return _mm512_srli_epi16(a, N);
}
template <int N>
inline vi v_shl16(vi a) {
    return _mm512_slli_epi16(a, N);
}
inline vi v_add32(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
inline vi v_mul32(vi a, vi b) {
    return _mm512_mullo_epi32(a, b);
}
template <int N>
inline vi v_shl32(vi a) {
    return _mm512_slli_epi32(a, N);
}
template <int N>
inline vi v_sra32(vi a) {
    return _mm512_srai_epi32(a, N);
}
template <int N>
inline vi v_shr32(vi a) {
    return _mm512_srli_epi32(a, N);
}
inline vi v_set1_32(int v) {
    return _mm512_set1_epi32(v);
}
// Selects a where x > y, else b.
inline vi v_select_above(vi x, vi y, vi a, vi b) {
    return _mm512_mask_mov_epi32(b, _mm512_cmpgt_epi32_mask(x, y), a);
}
inline vi v_bcast128(const void * p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) p));
}
inline vi v_shuffle8(vi x, vi from) {
    return _mm512_shuffle_epi8(x, from);
}
inline vi v_load_u8(const uint8_t * p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p));
}
inline vi v_load_u16(const uint16_t * p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p));
}
inline vi v_bcast32(const void * p) {
    int32_t v;
    memcpy(&v, p, sizeof(v));
    return _mm512_set1_epi32(v);
}
inline vi v_bcast64(const void * p) {
    int64_t v;
    memcpy(&v, p, sizeof(v));
    return _mm512_set1_epi64(v);
}
// Extends 2 * LANES signed bytes to 16 bits.
inline vi v_widen8(const void * p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *) p));
}
inline vi v_bcast256(const void * p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) p));
}
inline vi v_dpbusd(vi acc, vi u, vi s) {
    return _mm512_dpbusd_epi32(acc, u, s);
}
inline vi v_dpwssd(vi acc, vi a, vi b) {
    return _mm512_dpwssd_epi32(acc, a, b);
}
inline vf v_float(vi a) {
    return _mm512_cvtepi32_ps(a);
}
inline vf v_as_float(vi a) {
    return _mm512_castsi512_ps(a);
}
inline vf v_zerof() {
    return _mm512_setzero_ps();
}
inline vf v_addf(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
inline vf v_subf(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
inline vf v_maxf(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
inline vf v_set1f(float x) {
    return _mm512_set1_ps(x);
}
inline vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
inline vf v_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
inline vf v_loadf(const float * p) {
    return _mm512_loadu_ps(p);
}
inline void v_storef(float * p, vf a) {
    _mm512_storeu_ps(p, a);
}
inline vf v_load_f16(const void * p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}
inline vf v_load_bf16(const void * p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16));
}

#else

using vi = __m256i;
using vf = __m256;
constexpr int LANES = 8;
constexpr int TILE_ROWS = 4;

inline vi v_load(const void * p) {
    return _mm256_loadu_si256((const __m256i *) p);
}
inline void v_store(void * p, vi a) {
    _mm256_storeu_si256((__m256i *) p, a);
}
inline vi v_zero() {
    return _mm256_setzero_si256();
}
inline vi v_set1_8(int v) {
    return _mm256_set1_epi8((char) v);
}
inline vi v_set1_16(int v) {
    return _mm256_set1_epi16((short) v);
}
inline vi v_and(vi a, vi b) {
    return _mm256_and_si256(a, b);
}
inline vi v_or(vi a, vi b) {
    return _mm256_or_si256(a, b);
}
inline vi v_xor(vi a, vi b) {
    return _mm256_xor_si256(a, b);
}
inline vi v_sub32(vi a, vi b) {
    return _mm256_sub_epi32(a, b);
}
inline vi v_sub8(vi a, vi b) {
    return _mm256_sub_epi8(a, b);
}
template <int N>
inline vi v_sra16(vi a) {
    return _mm256_srai_epi16(a, N);
}
template <int N>
inline vi v_shr16(vi a) {
    return _mm256_srli_epi16(a, N);
}
template <int N>
inline vi v_shl16(vi a) {
    return _mm256_slli_epi16(a, N);
}
inline vi v_add32(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
inline vi v_mul32(vi a, vi b) {
    return _mm256_mullo_epi32(a, b);
}
template <int N>
inline vi v_shl32(vi a) {
    return _mm256_slli_epi32(a, N);
}
template <int N>
inline vi v_sra32(vi a) {
    return _mm256_srai_epi32(a, N);
}
template <int N>
inline vi v_shr32(vi a) {
    return _mm256_srli_epi32(a, N);
}
inline vi v_set1_32(int v) {
    return _mm256_set1_epi32(v);
}
inline vi v_select_above(vi x, vi y, vi a, vi b) {
    return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi32(x, y));
}
inline vi v_bcast128(const void * p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) p));
}
inline vi v_shuffle8(vi x, vi from) {
    return _mm256_shuffle_epi8(x, from);
}
inline vi v_load_u8(const uint8_t * p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p));
}
inline vi v_load_u16(const uint16_t * p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p));
}
inline vi v_bcast32(const void * p) {
    int32_t v;
    memcpy(&v, p, sizeof(v));
    return _mm256_set1_epi32(v);
}
inline vi v_bcast64(const void * p) {
    int64_t v;
    memcpy(&v, p, sizeof(v));
    return _mm256_set1_epi64x(v);
}
inline vi v_widen8(const void * p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) p));
}
inline vi v_bcast256(const void * p) {
    return v_load(p);
}
#if defined(__AVXVNNI__)
#define EAGLE_SIMD_VNNI 1
inline vi v_dpbusd(vi acc, vi u, vi s) {
    return _mm256_dpbusd_avx_epi32(acc, u, s);
}
inline vi v_dpwssd(vi acc, vi a, vi b) {
    return _mm256_dpwssd_avx_epi32(acc, a, b);
}
#else
// Without VNNI sums of byte products saturate at 16 bits, so callers must keep |u * s| * 2 below 32768.
inline vi v_dpbusd(vi acc, vi u, vi s) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
inline vi v_dpwssd(vi acc, vi a, vi b) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
inline vi v_maddubs(vi u, vi s) {
    return _mm256_maddubs_epi16(u, s);
}
inline vi v_madd16(vi a, vi b) {
    return _mm256_madd_epi16(a, b);
}
inline vi v_add16(vi a, vi b) {
    return _mm256_add_epi16(a, b);
}
#endif
inline vf v_float(vi a) {
    return _mm256_cvtepi32_ps(a);
}
inline vf v_as_float(vi a) {
    return _mm256_castsi256_ps(a);
}
inline vf v_zerof() {
    return _mm256_setzero_ps();
}
inline vf v_addf(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
inline vf v_subf(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
inline vf v_maxf(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
inline vf v_set1f(float x) {
    return _mm256_set1_ps(x);
}
inline vf v_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
inline vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
inline vf v_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
inline vf v_loadf(const float * p) {
    return _mm256_loadu_ps(p);
}
inline void v_storef(float * p, vf a) {
    _mm256_storeu_ps(p, a);
}
inline vf v_load_f16(const void * p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
}
inline vf v_load_bf16(const void * p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16));
}

#endif

#if defined(EAGLE_SIMD_512)
#define EAGLE_SIMD_VNNI 1
#endif

// Looks up each byte of x (0 to 15) in a table of 16 bytes.
inline vi v_lookup(const uint8_t * table, vi x) {
    return v_shuffle8(v_bcast128(table), x);
}

// Rearranges the bytes of each 32-bit lane to A, B, C, D; NONE: zero.
constexpr int NONE = -1;
template <int A, int B, int C, int D>
inline vi v_bytes(vi x) {
    static constexpr auto FROM = [] {
        constexpr int OF[] = {A, B, C, D};
        std::array<int8_t, 16> from = {};
        for (int i = 0; i < 16; ++i) {
            from[i] = (int8_t) (OF[i % 4] == NONE ? NONE : i / 4 * 4 + OF[i % 4]);
        }
        return from;
    }();
    return v_shuffle8(x, v_bcast128(FROM.data()));
}

// Extends bytes A and B of each 32-bit lane to 16 bits.
template <bool SIGNED, int A, int B>
inline vi v_pair16(vi x) {
    if constexpr (SIGNED) {
        return v_sra16<8>(v_bytes<NONE, A, NONE, B>(x));
    } else {
        return v_bytes<A, NONE, B, NONE>(x);
    }
}

constexpr int PREFETCH_BYTES = 16384;  // default prefetch distance

// Prefetches the BYTES bytes at p + distance into the cache of this level (1 or 2). Weights are read from memory once,
// and the hardware's prefetchers fail when several rows are read in parallel.
//
// It must be inlined: GCC drops calls of a function that only prefetches, because it takes them for calls without
// effect.
template <int BYTES>
EAGLE_INLINE inline void prefetch(const void * p, int distance = PREFETCH_BYTES, int level = 1) {
    const char * from = (const char *) p + distance;
    if (level == 2) {
        for (int i = 0; i < BYTES; i += 64) {
            _mm_prefetch(from + i, _MM_HINT_T1);
        }
    } else {
        for (int i = 0; i < BYTES; i += 64) {
            _mm_prefetch(from + i, _MM_HINT_T0);
        }
    }
}

// Keeps x in a register, and the order of operations on it: the compiler would load x again at each use, or build trees
// of sums that need too many registers.
template <typename V>
inline void v_keep(V & x) {
#if !defined(__GNUC__)
    (void) x;
#elif defined(EAGLE_SIMD_512)
    asm("" : "+v"(x));
#else
    asm("" : "+x"(x));
#endif
}

inline float f16_to_float(uint16_t h) {
    return _cvtsh_ss(h);
}

// Sums 8 lanes in a fixed order.
inline float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

// v_sums returns the sums of LANES vectors, each in the order of v_sum. Lane i is the sum of a[LANES / 4 * (i % 4) + i
// / 4].
#ifdef EAGLE_SIMD_512
inline float v_sum(vf a) {
    return sum8(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
inline vf v_sums(const vf * a) {
    vf quarters[4];  // quarters[i]: partial sums of a[4 * i .. 4 * i + 3], four each
    for (int i = 0; i < 4; ++i) {
        vf halves[2];
        for (int h = 0; h < 2; ++h) {
            const vf x = a[4 * i + 2 * h], y = a[4 * i + 2 * h + 1];
            halves[h] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
        }
        quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                                    _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
    }
    vf pairs[2];
    for (int i = 0; i < 2; ++i) {
        const vf x = quarters[2 * i], y = quarters[2 * i + 1];
        pairs[i] = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88), _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd));
}
#else
inline float v_sum(vf a) {
    return sum8(a);
}
inline vf v_sums(const vf * a) {
    vf pairs[2];
    for (int i = 0; i < 2; ++i) {
        vf halves[2];
        for (int h = 0; h < 2; ++h) {
            const vf x = a[4 * i + 2 * h], y = a[4 * i + 2 * h + 1];
            halves[h] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
        }
        pairs[i] =
            _mm256_add_ps(_mm256_shuffle_ps(halves[0], halves[1], 0x44), _mm256_shuffle_ps(halves[0], halves[1], 0xee));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88), _mm256_shuffle_ps(pairs[0], pairs[1], 0xdd));
}
#endif

}  // namespace eagle

#endif  // SIMD
