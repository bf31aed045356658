// Runs a kernel's tile function over the activation rows, a few at a time, with their number as a template parameter so
// that accumulators stay in registers.
#pragma once

#include <algorithm>

#include "eagle_kernels.h"
#include "eagle_simd.h"

#ifdef EAGLE_SIMD

namespace eagle {

// Tile: struct with `template <int NR> static void run(const dot_args &, const char * const * act, float * const * dst,
// int64_t i)`, which computes rows [i, i + STEP) of the weights for NR activation rows, ROWS of them at most.
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

// Weight rows [begin, end) in as few passes as registers allow, of nearly equal size: the weights are unpacked in each.
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
