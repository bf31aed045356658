// Runs a kernel's tile function over the activation rows, a few at a time, with their number as a template parameter so
// that accumulators stay in registers.
#pragma once

#include "eagle_kernels.h"
#include "eagle_simd.h"

#ifdef EAGLE_SIMD

namespace eagle {

// Tile: struct with `template <int NR> static void run(const dot_args &, const char * const * act, float * const * dst,
// int64_t i)`, which computes rows [i, i + step) of the weights for NR activation rows.
template <typename Tile, int NR>
inline void run_rows(const dot_args & a, int first, int64_t i) {
    Tile::template run<NR>(a, a.act + first, a.dst + first, i);
}

template <typename Tile>
void run_tiles(const dot_args & a) {
    static_assert(TILE_ROWS == 4 || TILE_ROWS == 8, "cases below");
    for (int64_t i = 0; i < a.n_w; i += Tile::STEP) {
        for (int first = 0; first < a.n_act; first += TILE_ROWS) {
            const int left = a.n_act - first;
            switch (left < TILE_ROWS ? left : TILE_ROWS) {
            case 1:
                run_rows<Tile, 1>(a, first, i);
                break;
            case 2:
                run_rows<Tile, 2>(a, first, i);
                break;
            case 3:
                run_rows<Tile, 3>(a, first, i);
                break;
            case 4:
                run_rows<Tile, 4>(a, first, i);
                break;
#if defined(EAGLE_SIMD_512)
            case 5:
                run_rows<Tile, 5>(a, first, i);
                break;
            case 6:
                run_rows<Tile, 6>(a, first, i);
                break;
            case 7:
                run_rows<Tile, 7>(a, first, i);
                break;
            case 8:
                run_rows<Tile, 8>(a, first, i);
                break;
#endif
            }
        }
    }
}

}  // namespace eagle

#endif  // EAGLE_SIMD
