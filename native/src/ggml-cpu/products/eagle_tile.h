// Calls a kernel's tile function for a few activation rows at a time. Their number is a template parameter, so that the
// accumulators stay in registers.
#pragma once

#include <algorithm>

#include "eagle_kernels.h"
#include "eagle_simd.h"

#ifdef EAGLE_SIMD

namespace eagle {

// Tile: struct with `template <int NR> static void run(const dot_args &, const char * const * act, float * const * dst,
// int64_t i)`, which computes rows [i, i + STEP) of the weights for NR <= ROWS activation rows.
template <typename Tile, int NR>
inline void run_rows(const dot_args & a, int first, int64_t i) {
    Tile::template run<NR>(a, a.act + first, a.dst + first, i);
}

template <typename Tile, int MOST>
inline void run_pass(const dot_args & a, int first, int n, int64_t i) {
    if (n == MOST) {
        return run_rows<Tile, MOST>(a, first, i);
    }
    if constexpr (MOST > 1) {
        run_pass<Tile, MOST - 1>(a, first, n, i);
    }
}

inline int passes_for(int n, int most) {
    return (n + most - 1) / most;
}

// Computes weight rows [begin, end) in as few passes as possible, of nearly equal size, because each pass unpacks the
// weights.
template <typename Tile>
void run_tiles(const dot_args & a, int64_t begin, int64_t end) {
    const int most = a.tune.rows > 0 ? std::min(a.tune.rows, Tile::ROWS) : Tile::ROWS;
    const int passes = passes_for(a.n_act, most);
    for (int64_t i = begin; i < end; i += Tile::STEP) {
        for (int p = 0; p < passes; ++p) {
            const int first = a.n_act * p / passes;
            run_pass<Tile, Tile::ROWS>(a, first, a.n_act * (p + 1) / passes - first, i);
        }
    }
}

template <typename Tile>
void run_tiles(const dot_args & a) {
    run_tiles<Tile>(a, 0, a.n_w);
}

}  // namespace eagle

#endif  // EAGLE_SIMD
