// Q8_0 weights in their plain layout.
#define GGML_COMMON_DECL_CPP
#include "eagle_pack.h"
#include "eagle_tile.h"
#include "ggml-common.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

size_t act_size_q8_0(const kernel &, int64_t n) {
    return act32::scales(n) + (size_t) n;
}

// With VNNI activations are stored with an offset of 128, because the first operand of dpbusd is unsigned. The kernel
// subtracts 128 times the sum of the weights.
void pack_q8_0(const kernel &, const float * x, void * act, int64_t n, int64_t begin, int64_t end) {
    float * d = (float *) act;
    int8_t * qs = (int8_t *) act + act32::scales(n);
    for (int64_t b = begin; b < end; ++b) {
        d[b] = pack32(x + 32 * b, qs + 32 * b);
#ifdef EAGLE_SIMD_VNNI
        __m256i * q = (__m256i *) (qs + 32 * b);
        _mm256_storeu_si256(q, _mm256_xor_si256(_mm256_loadu_si256(q), _mm256_set1_epi8((char) 0x80)));
#endif
    }
}

#ifdef EAGLE_SIMD_512

constexpr int ROWS_PER_VEC = 2;

inline vi load_rows(const block_q8_0 * const * row, int64_t b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) row[0][b].qs)),
                              _mm256_loadu_si256((const __m256i *) row[1][b].qs), 1);
}

inline vf load_scales(const block_q8_0 * const * row, int64_t b) {
    const uint32_t pair = row[0][b].d | (uint32_t) row[1][b].d << 16;
    const __m512 d = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int) pair)));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), d);
}

inline void store_rows(float * dst, vf acc, int64_t left) {
    dst[0] = sum8(_mm512_castps512_ps256(acc));
    if (left > 1) {
        dst[1] = sum8(_mm512_extractf32x8_ps(acc, 1));
    }
}

#else

constexpr int ROWS_PER_VEC = 1;

inline vi load_rows(const block_q8_0 * const * row, int64_t b) {
    return v_load(row[0][b].qs);
}
inline vf load_scales(const block_q8_0 * const * row, int64_t b) {
    return v_set1f(f16_to_float(row[0][b].d));
}
inline void store_rows(float * dst, vf acc, int64_t) {
    dst[0] = v_sum(acc);
}

#endif

// Multiplies a weight vector by an activation block; `shift` is the contribution of the activations' offset.
#ifdef EAGLE_SIMD_VNNI
inline vi shift_of(vi w) {
    return v_sub32(v_zero(), v_dpbusd(v_zero(), v_set1_8(-128), w));
}
inline vi dot_block(vi shift, vi w, vi a) {
    return v_dpbusd(shift, a, w);
}
#else
inline vi shift_of(vi) {
    return v_zero();
}
inline vi dot_block(vi, vi w, vi a) {
    return v_dpbusd(v_zero(), _mm256_sign_epi8(w, w), _mm256_sign_epi8(a, w));
}
#endif

struct tile_q8_0 {
    static constexpr int VECS = 2;
    static constexpr int STEP = VECS * ROWS_PER_VEC, ROWS = TILE_ROWS;

    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const block_q8_0 * row[STEP];
        for (int r = 0; r < STEP; ++r) {
            const int64_t k =
                i + r < a.n_w ? i + r : a.n_w - 1;  // past the end: the last row again, which is not stored
            row[r] = (const block_q8_0 *) (a.w + k * a.w_stride);
        }
        const char * group = a.w + i * a.w_stride;
        const size_t off = act32::scales(a.n);
        vf acc[NR][VECS];
        for (int j = 0; j < NR; ++j) {
            for (int v = 0; v < VECS; ++v) {
                acc[j][v] = v_zerof();
            }
        }
        for (int64_t b = 0; b < a.n / 32; ++b) {
            prefetch<STEP * sizeof(block_q8_0)>(group + b * STEP * sizeof(block_q8_0));
            vi w[VECS], shift[VECS];
            vf dw[VECS];
            for (int v = 0; v < VECS; ++v) {
                w[v] = load_rows(row + v * ROWS_PER_VEC, b);
                dw[v] = load_scales(row + v * ROWS_PER_VEC, b);
                shift[v] = shift_of(w[v]);
            }
            for (int j = 0; j < NR; ++j) {
                const vi x = v_bcast256(act[j] + off + 32 * b);
                const vf dx = v_set1f(((const float *) act[j])[b]);
                for (int v = 0; v < VECS; ++v) {
                    acc[j][v] = v_fma(v_float(dot_block(shift[v], w[v], x)), v_mul(dw[v], dx), acc[j][v]);
                }
            }
        }
        for (int j = 0; j < NR; ++j) {
            for (int v = 0; v < VECS && i + v * ROWS_PER_VEC < a.n_w; ++v) {
                store_rows(dst[j] + i + v * ROWS_PER_VEC, acc[j][v], a.n_w - i - v * ROWS_PER_VEC);
            }
        }
    }
};

}  // namespace

const kernel kernel_q8_0 = {GGML_TYPE_Q8_0, 1, 32, act_size_q8_0, pack_q8_0, run_tiles<tile_q8_0>};

}  // namespace eagle

#endif  // EAGLE_SIMD
