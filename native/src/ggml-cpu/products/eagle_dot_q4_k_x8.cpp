// Q4_K weights in the layout of ggml's repacking: eight rows interleaved by 8 bytes.
//
// A vector holds COLS weight rows, two int32 lanes each. Products of one sub-block of 32 values stay below 2^15 in a
// lane (16 * 15 * 127), so multiplying them by the 6-bit scale is one 16-bit multiply-add: the whole superblock stays
// in integers.
#define GGML_COMMON_DECL_CPP
#include "eagle_interleaved.h"
#include "eagle_pack_k.h"
#include "eagle_tile.h"
#include "ggml-common.h"
#include "repack.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

// Scales and mins of 8 sub-blocks of 8 rows, one byte each.
struct scales8x8 {
    alignas(64) uint8_t sc[8][8];
    alignas(64) uint8_t mn[8][8];
};

#ifdef EAGLE_SIMD_512

// Each sub-block has 12 bytes: three words u0, u1, u2. Moves all u0 to the lower half of a vector and all u1 to the
// upper half; the unpacking below restores the order of the sub-blocks.
inline void unpack_scales(const uint8_t * packed, scales8x8 & out) {
    const __m512i a = _mm512_loadu_si512(packed);
    const __m512i b = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) (packed + 64)));
    const __m512i u01 =
        _mm512_permutex2var_epi32(a, _mm512_setr_epi32(0, 3, 12, 15, 6, 9, 18, 21, 1, 4, 13, 16, 7, 10, 19, 22), b);
    const __m512i u2 =
        _mm512_permutex2var_epi32(a, _mm512_setr_epi32(2, 5, 14, 17, 8, 11, 20, 23, 2, 5, 14, 17, 8, 11, 20, 23), b);
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    const __m512i rows03 = v_and(u01, v_set1_8(0x3f));
    const __m512i rows47 =
        v_or(v_and(_mm512_srlv_epi32(u2, shift), v_set1_8(0x0f)), v_and(_mm512_srli_epi32(u01, 2), v_set1_8(0x30)));
    const __m512i first = _mm512_unpacklo_epi32(rows03, rows47), last = _mm512_unpackhi_epi32(rows03, rows47);
    _mm512_store_si512(out.sc, _mm512_inserti64x4(first, _mm512_castsi512_si256(last), 1));
    _mm512_store_si512(out.mn, _mm512_inserti64x4(last, _mm512_extracti64x4_epi64(first, 1), 0));
}

#else

inline void unpack_scales(const uint8_t * packed, scales8x8 & out) {
    for (int s = 0; s < 8; ++s) {
        uint32_t u[3];
        memcpy(u, packed + 12 * s, sizeof(u));
        const uint32_t sc[2] = {u[0] & 0x3f3f3f3f, (u[2] & 0x0f0f0f0f) | ((u[0] >> 2) & 0x30303030)};
        const uint32_t mn[2] = {u[1] & 0x3f3f3f3f, ((u[2] >> 4) & 0x0f0f0f0f) | ((u[1] >> 2) & 0x30303030)};
        memcpy(out.sc[s], sc, 8);
        memcpy(out.mn[s], mn, 8);
    }
}

#endif

#ifdef EAGLE_SIMD_512
inline vi twice32(const uint8_t * p) {
    const __m128i v = _mm_loadl_epi64((const __m128i *) p);
    return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(v, v));
}
#else
inline vi twice32(const uint8_t * p) {
    int32_t bytes;
    memcpy(&bytes, p, 4);
    const __m128i v = _mm_cvtsi32_si128(bytes);
    return _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(v, v));
}
#endif

// Returns the mins of four sub-blocks by row as 16-bit values: lane pairs (m0, m1), (m2, m3).
inline vi four_mins(const uint8_t (*mn)[8], int half) {
    const __m128i m01 =
        _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *) mn[0]), _mm_loadl_epi64((const __m128i *) mn[1]));
    const __m128i m23 =
        _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *) mn[2]), _mm_loadl_epi64((const __m128i *) mn[3]));
    const __m128i lo = _mm_unpacklo_epi16(m01, m23), hi = _mm_unpackhi_epi16(m01, m23);
#ifdef EAGLE_SIMD_512
    (void) half;
    return _mm512_cvtepu8_epi16(_mm256_set_m128i(hi, lo));
#else
    return _mm256_cvtepu8_epi16(half ? hi : lo);
#endif
}

struct tile_q4_K_x8 {
    static constexpr int STEP = 8, ROWS = TILE_ROWS;

    // Adds sub-blocks 2c and 2c + 1 of one superblock for NR rows: nibbles of `w`, scales of the pair.
    template <int NR>
    static inline void add_pair(vi * sum, const uint8_t * w, const scales8x8 & sm, int c, int h,
                                const act256 * const * x) {
        const vi nibble = v_set1_8(15);
        vi lo[4], hi[4];
        for (int k = 0; k < 4; ++k) {
            const vi q = v_load(w + 256 * c + 64 * k + 4 * LANES * h);
            lo[k] = v_and(q, nibble);
            hi[k] = v_and(v_shr16<4>(q), nibble);
        }
        const vi s0 = twice32(sm.sc[2 * c] + COLS * h), s1 = twice32(sm.sc[2 * c + 1] + COLS * h);
        for (int j = 0; j < NR; ++j) {
            const int8_t * y = x[j]->qs + 64 * c;
            vi p = v_zero(), q = v_zero();
            for (int k = 0; k < 4; ++k) {
                p = v_dpbusd(p, lo[k], v_bcast64(y + 8 * k));
                q = v_dpbusd(q, hi[k], v_bcast64(y + 32 + 8 * k));
            }
            sum[j] = v_dpwssd(v_dpwssd(sum[j], p, s0), q, s1);
        }
    }

    template <int NR>
    static inline void add_block(vf * acc, const block_q4_Kx8 & w, const scales8x8 & sm, int h,
                                 const act256 * const * x) {
        vi sum[NR];
        for (int j = 0; j < NR; ++j) {
            sum[j] = v_zero();
        }
        for (int c = 0; c < 4; ++c) {
            add_pair<NR>(sum, w.qs, sm, c, h, x);
        }
        const vf d = twice(w.d + COLS * h), dmin = twice(w.dmin + COLS * h);
        const vi m0 = four_mins(sm.mn, h), m1 = four_mins(sm.mn + 4, h);
        for (int j = 0; j < NR; ++j) {
            const vi low = v_dpwssd(v_dpwssd(v_zero(), m0, v_bcast64(x[j]->sums32)), m1, v_bcast64(x[j]->sums32 + 4));
            const vf dx = v_set1f(x[j]->d);
            acc[j] = v_fma(v_float(sum[j]), v_mul(d, dx), acc[j]);
            acc[j] = v_fnma(v_float(low), v_mul(dmin, dx), acc[j]);
        }
    }

    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const block_q4_Kx8 * w = (const block_q4_Kx8 *) (a.w + i / 8 * a.w_stride);
        vf acc[HALVES][NR];
        for (int h = 0; h < HALVES; ++h) {
            for (int j = 0; j < NR; ++j) {
                acc[h][j] = v_zerof();
            }
        }
        for (int64_t b = 0; b < a.n / 256; ++b) {
            const act256 * x[NR];
            for (int j = 0; j < NR; ++j) {
                x[j] = (const act256 *) act[j] + b;
            }
            prefetch<sizeof(block_q4_Kx8)>(w + b);
            scales8x8 sm;
            unpack_scales(w[b].scales, sm);
            for (int h = 0; h < HALVES; ++h) {
                add_block<NR>(acc[h], w[b], sm, h, x);
            }
        }
        for (int h = 0; h < HALVES; ++h) {
            for (int j = 0; j < NR; ++j) {
                store_pairs(dst[j] + i + COLS * h, acc[h][j]);
            }
        }
    }
};

}  // namespace

const kernel kernel_q4_K_x8 = {GGML_TYPE_Q4_K, 8, 256, act_size_k, pack_k, run_tiles<tile_q4_K_x8>};

}  // namespace eagle

#endif  // EAGLE_SIMD
