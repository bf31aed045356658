// Tiles of weights in blocks of 256 in their plain layouts. A block is unpacked once for all activation rows.
#pragma once

#include "eagle_pack_k.h"
#include "eagle_tile.h"

#ifdef EAGLE_SIMD

namespace eagle {

constexpr int VECS = 256 / (4 * LANES);  // vectors of bytes in a block

// Copies scale i of eight (byte i of `scales`) to the lanes of the values from 32 * i on.
inline void spread_scales32(__m128i scales, vi * s) {
#ifdef EAGLE_SIMD_512
    const __m512i all = _mm512_cvtepu8_epi32(scales);
    const __m512i one = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    for (int v = 0; v < VECS; ++v) {
        s[v] = _mm512_permutexvar_epi32(_mm512_add_epi32(one, _mm512_set1_epi32(2 * v)), all);
    }
#else
    const __m256i all = _mm256_cvtepu8_epi32(scales);
    for (int v = 0; v < VECS; ++v) {
        s[v] = _mm256_permutevar8x32_epi32(all, _mm256_set1_epi32(v));
    }
#endif
}

// Type: `block`, `unpacked`, `unpack(block, unpacked &)`, `add(acc, unpacked, activations)`, and `ROWS`.
template <typename Type>
struct tile_k {
    static constexpr int STEP = 1, ROWS = Type::ROWS;

    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const typename Type::block * w = (const typename Type::block *) (a.w + i * a.w_stride);
        vf acc[NR];
        for (int j = 0; j < NR; ++j) {
            acc[j] = v_zerof();
        }
        for (int64_t b = 0; b < a.n / 256; ++b) {
            prefetch<sizeof(w[b])>(w + b);
            typename Type::unpacked u;
            Type::unpack(w[b], u);
            for (int j = 0; j < NR; ++j) {
                acc[j] = Type::add(acc[j], u, ((const act256 *) act[j])[b]);
            }
        }
        for (int j = 0; j < NR; ++j) {
            dst[j][i] = v_sum(acc[j]);
        }
    }
};

template <typename Type>
constexpr kernel plain_k(ggml_type type) {
    return {type, 1, 256, act_size_k, pack_k, run_tiles<tile_k<Type>>};
}

}  // namespace eagle

#endif  // EAGLE_SIMD
