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
inline void run_pass(const dot_args & a, int first, int n, int64_t i) {
    static_assert(TILE_ROWS == 4 || TILE_ROWS == 8, "cases below");
    switch (n) {
    case 1:
        return run_rows<Tile, 1>(a, first, i);
    case 2:
        return run_rows<Tile, 2>(a, first, i);
    case 3:
        return run_rows<Tile, 3>(a, first, i);
    case 4:
        return run_rows<Tile, 4>(a, first, i);
#if defined(EAGLE_SIMD_512)
    case 5:
        return run_rows<Tile, 5>(a, first, i);
    case 6:
        return run_rows<Tile, 6>(a, first, i);
    case 7:
        return run_rows<Tile, 7>(a, first, i);
    case 8:
        return run_rows<Tile, 8>(a, first, i);
#endif
    }
}

// As few passes as registers allow, of nearly equal size: the weights are unpacked in each.
template <typename Tile>
void run_tiles(const dot_args & a) {
    const int passes = (a.n_act + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t i = 0; i < a.n_w; i += Tile::STEP) {
        for (int p = 0; p < passes; ++p) {
            const int first = a.n_act * p / passes;
            run_pass<Tile>(a, first, a.n_act * (p + 1) / passes - first, i);
        }
    }
}

}  // namespace eagle

#endif  // EAGLE_SIMD
