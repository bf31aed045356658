// Scores of many query rows with AVX-512.
//
// Lanes are query rows here, so that no sum crosses lanes. The additions and their order are those of score_some
// (eagle_flash_attn.cpp) and v_sums: the products of columns d, d + LANES, ... are summed first, then the sums of
// columns that are LANES / 2 apart, then LANES / 4, and so on.
#pragma once

#include "eagle_cells.h"

#ifdef EAGLE_SIMD_512

namespace eagle {

constexpr int LANE_ROWS = 2 * LANES;  // query rows of a pass
constexpr int LANE_KEYS = 16;         // keys of a pass
static_assert(TILE <= LANE_ROWS, "a tile has too many rows");

// Transposes LANES vectors.
inline void transpose(vf * x) {
    vf y[LANES];
    for (int i = 0; i < LANES; i += 4) {
        vf z[4];
        for (int k = 0; k < 4; k += 2) {
            z[k] = _mm512_unpacklo_ps(x[i + k], x[i + k + 1]);
            z[k + 1] = _mm512_unpackhi_ps(x[i + k], x[i + k + 1]);
        }
        for (int k = 0; k < 2; ++k) {
            y[i + 2 * k] = _mm512_shuffle_ps(z[k], z[k + 2], 0x44);
            y[i + 2 * k + 1] = _mm512_shuffle_ps(z[k], z[k + 2], 0xee);
        }
    }
    for (int k = 0; k < 4; ++k) {
        const vf a = _mm512_shuffle_f32x4(y[k], y[4 + k], 0x44), b = _mm512_shuffle_f32x4(y[k], y[4 + k], 0xee);
        const vf c = _mm512_shuffle_f32x4(y[8 + k], y[12 + k], 0x44),
                 d = _mm512_shuffle_f32x4(y[8 + k], y[12 + k], 0xee);
        x[k] = _mm512_shuffle_f32x4(a, c, 0x88);
        x[4 + k] = _mm512_shuffle_f32x4(a, c, 0xdd);
        x[8 + k] = _mm512_shuffle_f32x4(b, d, 0x88);
        x[12 + k] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

// Sums of LANE_KEYS keys with LANE_ROWS rows.
using lane_sums = vf[LANE_KEYS][2];

// For each of n keys: adds the products of column d and COLUMNS - 1 more, LANES apart, to those in `sums` (if not
// FIRST). LEAVES = 2: the same from column d + LANES / 2, and adds both. Then adds the last FOLDS sums before `sums`,
// the last one first, and stores where the first of them was.
template <int COLUMNS, int LEAVES, bool FIRST>
void add_columns(const float * keys, int64_t width, int64_t n, const float * query, int64_t d, lane_sums * sums,
                 int folds) {
    vf q[LEAVES][COLUMNS][2];
    for (int l = 0; l < LEAVES; ++l) {
        for (int c = 0; c < COLUMNS; ++c) {
            const int64_t column = d + l * LANES / 2 + c * LANES;
            for (int v = 0; v < 2; ++v) {
                q[l][c][v] = v_loadf(query + column * LANE_ROWS + v * LANES);
                v_keep(q[l][c][v]);
            }
        }
    }
    for (int64_t i = 0; i < n; ++i, keys += width) {
        vf acc[LEAVES][2];
        for (int l = 0; l < LEAVES; ++l) {
            for (int v = 0; v < 2; ++v) {
                acc[l][v] = FIRST ? v_zerof() : sums[0][i][v];
            }
            for (int c = 0; c < COLUMNS; ++c) {
                vf k = v_set1f(keys[d + l * LANES / 2 + c * LANES]);
                v_keep(k);
                for (int v = 0; v < 2; ++v) {
                    acc[l][v] = v_fma(k, q[l][c][v], acc[l][v]);
                }
            }
        }
        for (int v = 0; v < 2; ++v) {
            vf sum = LEAVES == 2 ? v_addf(acc[0][v], acc[LEAVES - 1][v]) : acc[0][v];
            for (int f = 1; f <= folds; ++f) {
                sum = v_addf(sums[-f][i][v], sum);
            }
            sums[-folds][i][v] = sum;
        }
    }
}

inline bool has_lane_scores(int64_t width, int rows) {
    return rows > 7 * LANES / 4 && (width == 4 * LANES || width % (8 * LANES) == 0);
}

// Returns the number of passes over the columns of 16 keys.
inline int lane_leaves(int64_t width) {
    return width == 4 * LANES ? LANES / 2 : LANES;
}

// Transposes the queries to columns of LANE_ROWS; rows from `rows` on are zero.
inline void to_columns(const float * queries, int rows, int64_t width, float * columns) {
    for (int64_t d = 0; d < width; d += LANES) {
        for (int v = 0; v < 2; ++v) {
            vf x[LANES];
            for (int j = 0; j < LANES; ++j) {
                x[j] = v * LANES + j < rows ? v_loadf(queries + (v * LANES + j) * width + d) : v_zerof();
            }
            transpose(x);
            for (int j = 0; j < LANES; ++j) {
                v_storef(columns + (d + j) * LANE_ROWS + v * LANES, x[j]);
            }
        }
    }
}

// Computes scores[j * SEGMENT + i] for n <= LANE_KEYS keys, which are floats; LANE_KEYS entries are overwritten.
inline void score_lanes(const float * keys, int64_t width, int64_t n, const float * columns, int rows, float * scores,
                        prefetcher & prefetch) {
    lane_sums sums[5];  // at most one of each level of the tree waits, as the digits of a binary counter
    const int leaves = lane_leaves(width), bits = leaves == LANES ? 4 : 3;
    for (int i = 0; i < leaves; ++i) {
        prefetch.step();
        int64_t d = 0;  // the bits of i in reverse order
        for (int b = 0; b < bits; ++b) {
            d |= (i >> b & 1) << (bits - 1 - b);
        }
        const int waiting = __builtin_popcount(i), folds = __builtin_ctz(~i);
        lane_sums * top = sums + waiting;
        if (leaves < LANES) {
            add_columns<4, 2, true>(keys, width, n, columns, d, top, folds);
            continue;
        }
        const int64_t last = width - 8 * LANES;
        add_columns<8, 1, true>(keys, width, n, columns, d, top, last == 0 ? folds : 0);
        for (int64_t c = 8 * LANES; c <= last; c += 8 * LANES) {
            add_columns<8, 1, false>(keys, width, n, columns, d + c, top, c == last ? folds : 0);
        }
    }
    for (int v = 0; v < 2; ++v) {
        vf x[LANES];
        for (int i = 0; i < LANES; ++i) {
            x[i] = sums[0][i][v];
        }
        transpose(x);
        for (int j = 0; j < LANES && v * LANES + j < rows; ++j) {
            v_storef(scores + (v * LANES + j) * SEGMENT, x[j]);
        }
    }
}

}  // namespace eagle

#endif  // EAGLE_SIMD_512
