// F32, F16 and BF16 weights (and cached keys and values). Activations stay F32, so nothing is rounded before the
// products.
//
// Value k of a row is always in lane k % LANES, and the end is padded with zeros. So rows that differ only in trailing
// zeros (masked cache cells) give the same bits.
#include "eagle_tile.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

struct f32_t {
    using elem = float;
    static inline vf load(const elem * p) { return v_loadf(p); }
};
struct f16_t {
    using elem = uint16_t;
    static inline vf load(const elem * p) { return v_load_f16(p); }
};
struct bf16_t {
    using elem = uint16_t;
    static inline vf load(const elem * p) { return v_load_bf16(p); }
};

template <typename Type>
struct tile_float {
    using elem = typename Type::elem;
    static constexpr int STEP = 4, ROWS = TILE_ROWS;

    // Adds the products of SIDE weight rows, which share the loaded activations.
    template <int NR, int SIDE>
    static inline void add(vf (*acc)[SIDE], const elem * const * row, const char * const * act, int64_t k) {
        vf w[SIDE];
        for (int r = 0; r < SIDE; ++r) {
            w[r] = Type::load(row[r] + k);
        }
        for (int j = 0; j < NR; ++j) {
            const vf x = v_loadf((const float *) act[j] + k);
            for (int r = 0; r < SIDE; ++r) {
                acc[j][r] = v_fma(w[r], x, acc[j][r]);
            }
        }
    }

    template <int NR, int SIDE>
    static void add_tail(vf (*acc)[SIDE], const elem * const * row, const char * const * act, int64_t k, int64_t n) {
        elem w[SIDE][LANES] = {};
        float x[NR][LANES] = {};
        const elem * wp[SIDE];
        const char * xp[NR];
        for (int r = 0; r < SIDE; ++r) {
            memcpy(w[r], row[r] + k, (size_t) (n - k) * sizeof(elem));
            wp[r] = w[r];
        }
        for (int j = 0; j < NR; ++j) {
            memcpy(x[j], (const float *) act[j] + k, (size_t) (n - k) * sizeof(float));
            xp[j] = (const char *) x[j];
        }
        add<NR, SIDE>(acc, wp, xp, 0);
    }

    template <int NR, int SIDE>
    static void run_side(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const elem * row[SIDE];
        vf acc[NR][SIDE];
        for (int r = 0; r < SIDE; ++r) {
            row[r] = (const elem *) (a.w + (i + r < a.n_w ? i + r : i) * a.w_stride);
            for (int j = 0; j < NR; ++j) {
                acc[j][r] = v_zerof();
            }
        }
        // A single row needs several vectors per iteration to reach memory bandwidth. For a single F32 row prefetching
        // is slower.
        constexpr int64_t LINE = 64 / sizeof(elem), TURN = NR == 1 ? 4 * LANES : LINE;
        constexpr bool PREFETCHES = SIDE > 1 || sizeof(elem) < 4;
        int64_t k = 0;
        for (; k + TURN <= a.n; k += TURN) {
            for (int64_t u = 0; u < TURN; u += LANES) {
                for (int r = 0; r < SIDE && PREFETCHES && u % LINE == 0; ++r) {
                    prefetch<1>(row[r] + k + u);
                }
                add<NR, SIDE>(acc, row, act, k + u);
            }
        }
        for (; k + LANES <= a.n; k += LANES) {
            add<NR, SIDE>(acc, row, act, k);
        }
        if (k < a.n) {
            add_tail<NR, SIDE>(acc, row, act, k, a.n);
        }
        for (int j = 0; j < NR; ++j) {
            for (int r = 0; r < SIDE && i + r < a.n_w; ++r) {
                dst[j][i + r] = v_sum(acc[j][r]);
            }
        }
    }

    // A single activation row is limited by memory and fastest with one weight row at a time; more rows are limited by
    // arithmetic and compute as many weight rows together as registers allow.
    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        constexpr int ALONE =
            LANES == 8 && sizeof(elem) == 2 ? 2 : 1;  // with one row the dependent additions limit it there
        constexpr int SIDE = NR == 1 ? ALONE : NR <= TILE_ROWS / 2 + 1 ? 4 : 2;
        for (int r = 0; r < STEP && i + r < a.n_w; r += SIDE) {
            run_side<NR, SIDE>(a, act, dst, i + r);
        }
    }
};

}  // namespace

const kernel kernel_f32 = {GGML_TYPE_F32, 1, 0, nullptr, nullptr, run_tiles<tile_float<f32_t>>};
const kernel kernel_f16 = {GGML_TYPE_F16, 1, 0, nullptr, nullptr, run_tiles<tile_float<f16_t>>};
const kernel kernel_bf16 = {GGML_TYPE_BF16, 1, 0, nullptr, nullptr, run_tiles<tile_float<bf16_t>>};

}  // namespace eagle

#endif  // EAGLE_SIMD
