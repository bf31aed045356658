// Q4_0 weights: the layout of ggml's repacking (eight rows interleaved by 8 bytes) and the plain one.
#define GGML_COMMON_DECL_CPP
#include "eagle_interleaved.h"
#include "eagle_pack.h"
#include "eagle_tile.h"
#include "ggml-common.h"
#include "repack.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

size_t act_size_q4_0(const kernel &, int64_t n) {
    return act32::scales(n) + act32::pairs(n) + (size_t) n;
}

// Each block also stores {-8 * sum, 0}, because the nibbles have an offset of 8.
void pack_q4_0(const kernel &, const float * x, void * act, int64_t n, int64_t begin, int64_t end) {
    float * d = (float *) act;
    int32_t * pairs = (int32_t *) ((char *) act + act32::scales(n));
    int8_t * qs = (int8_t *) pairs + act32::pairs(n);
    for (int64_t b = begin; b < end; ++b) {
        d[b] = pack32(x + 32 * b, qs + 32 * b);
        int sum = 0;
        for (int k = 0; k < 32; ++k) {
            sum += qs[32 * b + k];
        }
        pairs[2 * b] = -8 * sum;
        pairs[2 * b + 1] = 0;
    }
}

struct act_q4_0 {
    const float * d;
    const int32_t * pairs;
    const int8_t * qs;
    act_q4_0() = default;
    act_q4_0(const char * act, int64_t n)
        : d((const float *) act),
          pairs((const int32_t *) (act + act32::scales(n))),
          qs((const int8_t *) (act + act32::scales(n) + act32::pairs(n))) {}
};

struct tile_q4_0_x8 {
    static constexpr int STEP = 8, ROWS = TILE_ROWS;

    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const block_q4_0x8 * w = (const block_q4_0x8 *) (a.w + i / 8 * a.w_stride);
        act_q4_0 x[NR];
        vf acc[NR][HALVES];
        for (int j = 0; j < NR; ++j) {
            x[j] = act_q4_0(act[j], a.n);
            for (int h = 0; h < HALVES; ++h) {
                acc[j][h] = v_zerof();
            }
        }
        const vi nibble = v_set1_8(15), flip = v_set1_8(8);  // the repacked nibbles have their top bit flipped
        for (int64_t b = 0; b < a.n / 32; ++b) {
            prefetch<sizeof(block_q4_0x8)>(w + b);
            for (int h = 0; h < HALVES; ++h) {
                const vi w0 = v_load(w[b].qs + 4 * LANES * h);
                const vi w1 = v_load(w[b].qs + 64 + 4 * LANES * h);
                const vi q[4] = {v_xor(v_and(w0, nibble), flip), v_xor(v_and(w1, nibble), flip),
                                 v_xor(v_and(v_shr16<4>(w0), nibble), flip),
                                 v_xor(v_and(v_shr16<4>(w1), nibble), flip)};
                const vf dw = twice(w[b].d + COLS * h);
                for (int j = 0; j < NR; ++j) {
                    vi sum = v_bcast64(x[j].pairs + 2 * b);
                    for (int k = 0; k < 4; ++k) {
                        sum = v_dpbusd(sum, q[k], v_bcast64(x[j].qs + 32 * b + 8 * k));
                    }
                    acc[j][h] = v_fma(v_float(sum), v_mul(dw, v_set1f(x[j].d[b])), acc[j][h]);
                }
            }
        }
        for (int j = 0; j < NR; ++j) {
            for (int h = 0; h < HALVES; ++h) {
                store_pairs(dst[j] + i + COLS * h, acc[j][h]);
            }
        }
    }
};

// Plain layout, for tensors whose number of rows is not a multiple of eight: one weight row at a time, 256 bits wide.
struct tile_q4_0 {
    static constexpr int STEP = 1, ROWS = TILE_ROWS;

    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const block_q4_0 * w = (const block_q4_0 *) (a.w + i * a.w_stride);
        act_q4_0 x[NR];
        __m256 acc[NR];
        for (int j = 0; j < NR; ++j) {
            x[j] = act_q4_0(act[j], a.n);
            acc[j] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < a.n / 32; ++b) {
            const __m128i raw = _mm_loadu_si128((const __m128i *) w[b].qs);
            const __m256i q = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(raw, 4), raw), _mm256_set1_epi8(15));
            const __m256 dw = _mm256_set1_ps(f16_to_float(w[b].d));
            for (int j = 0; j < NR; ++j) {
                const __m256i y = _mm256_loadu_si256((const __m256i *) (x[j].qs + 32 * b));
                const __m256i s16 = _mm256_maddubs_epi16(q, y);
                __m256i s = _mm256_madd_epi16(s16, _mm256_set1_epi16(1));
                s = _mm256_add_epi32(s,
                                     _mm256_zextsi128_si256(_mm_loadl_epi64((const __m128i *) (x[j].pairs + 2 * b))));
                acc[j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_mul_ps(dw, _mm256_set1_ps(x[j].d[b])), acc[j]);
            }
        }
        for (int j = 0; j < NR; ++j) {
            dst[j][i] = sum8(acc[j]);
        }
    }
};

}  // namespace

const kernel kernel_q4_0_x8 = {GGML_TYPE_Q4_0, 8, 32, act_size_q4_0, pack_q4_0, run_tiles<tile_q4_0_x8>};
const kernel kernel_q4_0 = {GGML_TYPE_Q4_0, 1, 32, act_size_q4_0, pack_q4_0, run_tiles<tile_q4_0>};

}  // namespace eagle

#endif  // EAGLE_SIMD
