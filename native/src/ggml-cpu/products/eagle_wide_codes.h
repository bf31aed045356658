// Shared parts of the kernels for our repacked layout: codes, and their products with activations by lanes.
#pragma once

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

#include "eagle_simd.h"
#include "eagle_tile.h"
#include "eagle_wide.h"

#ifdef EAGLE_SIMD

namespace eagle {

constexpr int PARTS = WIDE / LANES;  // vectors that hold one value (or four bytes) of each row
constexpr int VECTORS = 8;           // vectors of codes in a sub-block of 32 values

// --- groups of weight rows -------------------------------------------------------------------------------------------

// Number of groups that a pass can compute together. Two groups share the loaded activations, which helps if there are
// many rows, but need twice the accumulators, so that fewer rows fit a pass.
constexpr int GROUPS = LANES == WIDE ? 2 : 1;
constexpr int PAIR_PASS = 8;  // tuned passes of fewer rows compute one group

// Returns the number of rows that a tile for n rows is compiled for. Above nine not every number is compiled, since
// each takes a second of compile time; the last row is then computed repeatedly.
constexpr int padded(int n) {
    return n <= 9 ? n : n <= 12 ? 12 : 16;
}

// Tiles of G groups: Tile::run<NR, G> computes weight rows [i, i + G * WIDE) for up to Tile::ROWS[G - 1] activation
// rows. Passes of two groups have at least half of that number.
template <typename Tile, int G>
struct by_groups {
    static constexpr int STEP = G * WIDE, ROWS = Tile::ROWS[G - 1], LEAST = G > 1 ? std::min(ROWS, PAIR_PASS) / 2 : 1;
    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        constexpr int N = padded(NR);
        if constexpr (N == NR && NR >= LEAST) {
            Tile::template run<NR, G>(a, act, dst, i);
        } else if constexpr (N != NR) {
            const char * acts[N];
            float * dsts[N];
            for (int j = 0; j < N; ++j) {
                acts[j] = act[std::min(j, NR - 1)];
                dsts[j] = dst[std::min(j, NR - 1)];
            }
            Tile::template run<N, G>(a, acts, dsts, i);
        }
    }
};

// Returns the number of groups per pass. The kernel's own choice is two if that does not need more passes.
template <typename Tile>
int groups_for(const dot_args & a) {
    if (a.n_act <= FEW_ROWS || (a.tune.rows > 0 && a.tune.rows < PAIR_PASS)) {
        return 1;
    }
    const bool pairs = passes_for(a.n_act, Tile::ROWS[1]) <= passes_for(a.n_act, Tile::ROWS[0]);
    return a.tune.groups > 0 ? a.tune.groups : pairs ? GROUPS : 1;
}

template <typename Tile>
void run_wide_tiles(const dot_args & a) {
    const int64_t end = groups_for<Tile>(a) > 1 ? a.n_w / (GROUPS * WIDE) * (GROUPS * WIDE) : 0;
    run_tiles<by_groups<Tile, GROUPS>>(a, 0, end);
    run_tiles<by_groups<Tile, 1>>(a, end, a.n_w);
}

// --- unrolled loops --------------------------------------------------------------------------------------------------

// Makes the compiler reload values from memory: there are too few registers to keep them.
inline void forget_loads() {
#if defined(__GNUC__)
    asm volatile("" ::: "memory");
#endif
}

template <typename F, int... I>
EAGLE_INLINE inline void unroll(std::integer_sequence<int, I...>, F && f) {
    (f(std::integral_constant<int, I>()), ...);
}

// Calls f with the constants 0 to N - 1.
template <int N, typename F>
EAGLE_INLINE inline void unroll(F && f) {
    unroll(std::make_integer_sequence<int, N>(), f);
}

// Calls f with all constants (l, m, n) below (L, M, N). Arrays stay in registers only if their indexes are constants.
template <int L, int M, int N, typename F>
EAGLE_INLINE inline void each(F && f) {
    unroll<L>([&](auto l) EAGLE_INLINE {
        unroll<M>([&](auto m) EAGLE_INLINE { unroll<N>([&](auto n) EAGLE_INLINE { f(l, m, n); }); });
    });
}

// Splits NR activation rows into turns of at most AT_ONCE rows, whose sums fit the registers, at each block of weights.
// The first turn loads the block into L1; one turn multiplies while the other waits for weights. Turns over several
// blocks are slower. Calls f(FIRST, N) with constants for each turn.
template <int NR, int AT_ONCE, typename F>
EAGLE_INLINE inline void take_turns(F && f) {
    constexpr int TURNS = (NR + AT_ONCE - 1) / AT_ONCE;
    unroll<TURNS>([&](auto turn) EAGLE_INLINE {
        constexpr int FIRST = NR * decltype(turn)::value / TURNS, END = NR * (decltype(turn)::value + 1) / TURNS;
        f(std::integral_constant<int, FIRST>(), std::integral_constant<int, END - FIRST>());
        forget_loads();
    });
}

// Vectors of weight rows that a pass computes together: TOGETHER parts of each of G groups.
template <typename variant, int G>
struct pass_vectors {
    static constexpr int TOGETHER = std::min(variant::TOGETHER, PARTS), TURNS = PARTS / TOGETHER, V = TOGETHER * G;
    static constexpr int group(int v) { return v / TOGETHER; }
    static constexpr int part(int turn, int v) { return turn * TOGETHER + v % TOGETHER; }
    static constexpr int row(int turn, int v) { return WIDE * group(v) + LANES * part(turn, v); }
};

// --- codes -----------------------------------------------------------------------------------------------------------

// Shifts bits up (BY > 0) or down. They can cross into the next byte, so callers must mask the result.
template <int BY>
inline vi move_bits(vi x) {
    if constexpr (BY == 0) {
        return x;
    } else if constexpr (BY > 0) {
        return v_shl16<BY>(x);
    } else {
        return v_shr16<-BY>(x);
    }
}

template <int BITS>
inline vi bits(int from) {
    return v_set1_8(((1 << BITS) - 1) << from);
}

// Returns vector K of the unsigned codes of sub-block s, which has 32 values.
template <int K, typename Codes>
inline vi code_of(const Codes & c, int s, int part) {
    constexpr int LOW = Codes::LOW_BITS, HIGH = Codes::HIGH_BITS, PER = 8 / LOW;
    const vi low = v_load(c.low[VECTORS / PER * s + K / PER] + 4 * LANES * part);
    if constexpr (LOW == 8) {
        return low;
    } else {
        const vi q = v_and(move_bits<-LOW *(K % PER)>(low), bits<LOW>(0));
        if constexpr (HIGH == 0) {
            return q;
        } else {
            constexpr int PER_HIGH = 8 / HIGH;
            const vi high = v_load(c.high[VECTORS / PER_HIGH * s + K / PER_HIGH] + 4 * LANES * part);
            return v_or(q, v_and(move_bits<LOW - HIGH *(K % PER_HIGH)>(high), bits<HIGH>(LOW)));
        }
    }
}

// --- products --------------------------------------------------------------------------------------------------------
//
// A variant defines how products of `RUN` vectors of codes (each at most MAX) with a row's activations are summed:
// open, add, and close into 32-bit lanes. Every step is exact in integers, so all variants have the same results. It
// also defines the format of activations (`activation`; `store` returns the sum of those whose codes have an offset),
// the activations of vector K of the codes (`values`), the number of rows in a turn (`AT_ONCE`), the number of parts
// that share loaded activations (`TOGETHER`), and the scale factor from byte K of each lane (`scale`). Sums that start
// `FROM_ZERO` begin with the `first` product. Two parts and five rows need ten sums, which fit the registers of AVX2.
// The sums of `CENTERED` products start at minus the codes' offset times the sum of their activations (`start`, from
// the sums of the first two and of the last two of every four), which is part of the activation row.

struct int8_activations {
    using activation = int8_t;
    static constexpr bool CENTERED = false, FROM_ZERO = false;
    static inline int store(const int8_t * q, int8_t * to) {
        std::copy(q, q + 32, to);
        return std::accumulate(q, q + 32, 0);
    }
    template <int K>
    static inline vi values(const int8_t * x) {
        return v_bcast32(x + 4 * K);
    }
};

#ifdef EAGLE_SIMD_VNNI

template <int MAX>
struct products : int8_activations {
    using sums = vi;
    static constexpr int RUN = VECTORS, AT_ONCE = 8, TOGETHER = 1, ROWS = LANES == WIDE ? 12 : 8;
    template <bool SIGNED, int K>
    static inline vi scale(vi bytes) {
        const vi top = v_shl32<24 - 8 * K>(bytes);
        return SIGNED ? v_sra32<24>(top) : v_shr32<24>(top);
    }
    template <bool SCALED>
    static inline vi open(vi sum) {
        return SCALED ? v_zero() : sum;
    }
    template <typename Type, int K, typename Block>
    static inline vi codes(const Block & w, int s, int part) {
        return Type::template code<K>(w, s, part);
    }
    static inline void add(vi & p, vi q, vi x) { p = v_dpbusd(p, q, x); }
    template <bool SCALED>
    static inline vi close(vi sum, vi p, vi scale) {
        return SCALED ? v_add32(sum, v_mul32(p, scale)) : p;
    }
};

template <int MAX, int OFFSET>
struct centered_products : products<MAX> {
    static constexpr bool CENTERED = true;
    static inline int32_t start(int first, int last) { return -OFFSET * (first + last); }
};

template <int MAX>
using products_32 = products<MAX>;

#else

inline void add_products(vi & sum, vi q, vi x) {
    sum = v_add16(sum, v_maddubs(q, x));
    v_keep(sum);
}

// Sums of byte products are pairs of 16-bit values, and so are their scale factors.
struct sums_of_pairs : int8_activations {
    template <bool SIGNED, int K>
    static inline vi scale(vi bytes) {
        return v_pair16<SIGNED, K, K>(bytes);
    }
};

// Adds as many products in 16 bits as cannot overflow.
template <int MAX>
struct products : sums_of_pairs {
    using sums = vi;
    static constexpr int FIT = 32767 / (2 * 127 * MAX), RUN = FIT >= 8 ? 8 : FIT >= 4 ? 4 : 2;
    static constexpr int AT_ONCE = 5, TOGETHER = 2, ROWS = 9;
    static constexpr bool FROM_ZERO = true;
    static_assert(FIT >= RUN, "codes are too large");
    template <bool SCALED>
    static inline vi open(vi) {
        return v_zero();
    }
    template <typename Type, int K, typename Block>
    static inline vi codes(const Block & w, int s, int part) {
        return Type::template code<K>(w, s, part);
    }
    static inline vi first(vi q, vi x) { return v_maddubs(q, x); }
    static inline void add(vi & p, vi q, vi x) { add_products(p, q, x); }
    template <bool SCALED>
    static inline vi close(vi sum, vi p, vi scale) {
        return v_add32(sum, v_madd16(p, SCALED ? scale : v_set1_16(1)));
    }
};

// Codes with an offset and a scale for every 16 values. Only the last sum must fit in 16 bits; the ones before may wrap
// around.
template <int MAX, int OFFSET>
struct centered_products : products<MAX> {
    static constexpr int RUN = 4;
    static constexpr bool CENTERED = true, FROM_ZERO = false;
    static_assert(2 * 127 * MAX < 32768 && 2 * RUN * 127 * std::max(OFFSET, MAX - OFFSET) < 32768,
                  "codes are too large");
    static inline int32_t start(int first, int last) {
        return (int32_t) ((uint32_t) (-OFFSET * last) << 16 | (uint16_t) (-OFFSET * first));
    }
};

struct vi_pair {
    vi high, low;
};

// 8-bit codes with 8-bit activations: multiplies the two nibbles of a code separately.
template <>
struct products<255> : sums_of_pairs {
    using sums = vi_pair;
    static constexpr int RUN = VECTORS, AT_ONCE = 5, TOGETHER = 1, ROWS = 5;
    template <bool SCALED>
    static inline vi_pair open(vi) {
        return {v_zero(), v_zero()};
    }
    template <typename Type, int K, typename Block>
    static inline vi_pair codes(const Block & w, int s, int part) {
        return Type::template halves<K>(w, s, part);
    }
    static inline void add(vi_pair & p, vi_pair q, vi x) {
        add_products(p.high, q.high, x);
        add_products(p.low, q.low, x);
    }
    template <bool SCALED>
    static inline vi close(vi sum, vi_pair p, vi scale) {
        const vi s = SCALED ? scale : v_set1_16(1);
        return v_add32(v_add32(sum, v_madd16(p.high, v_shl16<4>(s))), v_madd16(p.low, s));
    }
};

struct vi_words {
    vi both, odd;
};

// 8-bit codes with 16-bit activations: sums need no closing step. A word of two codes is even + 256 * odd, with the
// even code unsigned and the odd one signed, and is multiplied as it is. That counts the odd code 256 times with the
// even activation, so the odd code's activation is stored minus 256 times the even one. Of each four activations the
// even ones are stored first.
struct word_products {
    using sums = vi;
    using activation = int16_t;
    static constexpr bool CENTERED = false, FROM_ZERO = false;
    static constexpr int RUN = VECTORS, AT_ONCE = 5, TOGETHER = 2;
    static inline int store(const int8_t * q, int16_t * to) {
        int even = 0;
        for (int i = 0; i < 32; i += 4) {
            to[i] = q[i], to[i + 1] = q[i + 2];
            to[i + 2] = (int16_t) (q[i + 1] - 256 * q[i]), to[i + 3] = (int16_t) (q[i + 3] - 256 * q[i + 2]);
            even += q[i] + q[i + 2];
        }
        return even;
    }
    template <int K>
    static inline vi_words values(const int16_t * x) {
        return {v_bcast32(x + 4 * K), v_bcast32(x + 4 * K + 2)};
    }
    template <bool SCALED>
    static inline vi open(vi sum) {
        return sum;
    }
    template <typename Type, int K, typename Block>
    static inline vi_words codes(const Block & w, int s, int part) {
        vi q = Type::template code<K>(w, s, part);
        if constexpr (!Type::ODD_ARE_SIGNED) {
            q = v_xor(q, v_set1_16(-32768));
        }
        return {q, v_sra16<8>(q)};
    }
    static inline void add(vi & p, vi_words q, vi_words x) {
        p = v_dpwssd(p, q.both, x.both);
        v_keep(p);
        p = v_dpwssd(p, q.odd, x.odd);
        v_keep(p);
    }
    template <bool SCALED>
    static inline vi close(vi, vi p, vi) {
        static_assert(!SCALED, "there are no separate sums to scale");
        return p;
    }
};

template <int MAX>
using products_32 = std::conditional_t<MAX == 255, word_products, products<MAX>>;

#endif

// Adds the products of 32 values of each weight row with activation rows [FIRST, FIRST + NR) to `sum`, for V vectors of
// weight rows that share the loaded activations: part[v] of w[v]. A scale applies to Type::SUB values. `start` is read
// by centered products.
template <typename Type, typename variant, bool SCALED, int NR, int V, int FIRST, int ALL, typename Block>
EAGLE_INLINE inline void add_32(vi (*sum)[ALL], const Block * const * w, const int * part, int s,
                                const vi * const * scale, const typename variant::activation * const * x,
                                const int32_t * const * start) {
    constexpr int RUN = std::min(variant::RUN, Type::SUB / 4);
    unroll<VECTORS / RUN>([&](auto run) EAGLE_INLINE {
        typename variant::sums p[V][NR];
        for (int v = 0; v < V; ++v) {
            for (int j = 0; j < NR; ++j) {
                if constexpr (variant::CENTERED) {
                    p[v][j] = v_bcast32(start[FIRST + j] + run);
                } else {
                    p[v][j] = variant::template open<SCALED>(sum[v][FIRST + j]);
                }
            }
        }
        unroll<RUN>([&](auto k) EAGLE_INLINE {
            constexpr int K = decltype(run)::value * RUN + decltype(k)::value;
            decltype(variant::template codes<Type, K>(*w[0], s, 0)) q[V];
            for (int v = 0; v < V; ++v) {
                q[v] = variant::template codes<Type, K>(*w[v], s, part[v]);
            }
            for (int j = 0; j < NR; ++j) {
                const auto values = variant::template values<K>(x[FIRST + j]);
                for (int v = 0; v < V; ++v) {
                    if constexpr (variant::FROM_ZERO && decltype(k)::value == 0) {
                        p[v][j] = variant::first(q[v], values);
                    } else {
                        variant::add(p[v][j], q[v], values);
                    }
                }
            }
        });
        for (int v = 0; v < V; ++v) {
            const vi by = SCALED ? scale[v][decltype(run)::value * RUN * 4 / Type::SUB] : v_zero();
            for (int j = 0; j < NR; ++j) {
                sum[v][FIRST + j] = variant::template close<SCALED>(sum[v][FIRST + j], p[v][j], by);
            }
        }
    });
}

// --- values of codes -------------------------------------------------------------------------------------------------

// Value of each 4-bit code plus OFFSET, and its nibbles.
struct iq4_values {
    static constexpr int OFFSET = 128, MAX = 255;
    static constexpr uint8_t TABLE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
    static constexpr uint8_t HIGH[16] = {0, 1, 2, 3,  4,  5,  6,  7,
                                         8, 8, 9, 10, 11, 12, 13, 15};  // upper nibbles of TABLE
    static constexpr uint8_t LOW[16] = {1, 8, 13, 15, 15, 13, 10, 6, 1, 13, 9, 6, 5, 5, 9, 1};
};

struct mxfp4_values {
    static constexpr int OFFSET = 12, MAX = 24;
    static constexpr uint8_t TABLE[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

inline vf load_scale(const uint16_t * d) {
    return v_load_f16(d);
}
inline vf load_scale(const float * d) {
    return v_loadf(d);
}

// Codes that are values themselves, and codes that index a table of values.
template <typename Block>
struct plain_codes {
    using block = Block;
    static constexpr bool UNPACKED = false;
    static constexpr bool ODD_ARE_SIGNED = true;  // of 8-bit codes, if words are multiplied
    template <int K>
    static inline vi code(const Block & w, int s, int part) {
        return code_of<K>(w.codes, s, part);
    }
};

template <typename Block, typename Values>
struct table_codes {
    using block = Block;
    static constexpr int MAX = Values::MAX, OFFSET = Values::OFFSET;
    static constexpr bool UNPACKED = false;
    static constexpr bool ODD_ARE_SIGNED = false;
    template <int K>
    static inline vi code(const Block & w, int s, int part) {
        return v_lookup(Values::TABLE, code_of<K>(w.codes, s, part));
    }
#ifndef EAGLE_SIMD_VNNI
    template <int K>
    static inline vi_pair halves(const Block & w, int s, int part) {
        const vi q = code_of<K>(w.codes, s, part);
        return {v_lookup(Values::HIGH, q), v_lookup(Values::LOW, q)};
    }
#endif
};

// --- many rows -------------------------------------------------------------------------------------------------------
//
// Codes are unpacked once for all activation rows, some blocks at a time, which stay in L1. Sums of earlier blocks wait
// in the outputs meanwhile. Two vectors of weight rows share the loaded activations.

constexpr int MANY_GROUPS = 2 / PARTS;

// With AVX-512, codes that are one nibble or byte of blocks of 32 gain nothing, nor does Q2_K. Others need more rows,
// unless unpacked products save the correction of the codes' offset.
constexpr bool UNPACKING_IS_CHEAP = LANES == WIDE;

// Codes of N vectors in bytes, each with its final value.
template <int N>
struct byte_codes {
    alignas(64) uint8_t codes[N][4 * WIDE];

    template <typename Type>
    void unpack(const typename Type::block & from) {
        for (int s = 0; s < N / VECTORS; ++s) {
            unroll<VECTORS>([&](auto k) EAGLE_INLINE {
                for (int part = 0; part < PARTS; ++part) {
                    vi q = Type::template code<k>(from, s, part);
#ifndef EAGLE_SIMD_VNNI
                    if constexpr (Type::MAX == 255 && !Type::ODD_ARE_SIGNED) {
                        q = v_xor(q, v_set1_16(-32768));
                    }
#endif
                    v_store(codes[VECTORS * s + k] + 4 * LANES * part, q);
                }
            });
        }
    }
};

template <typename Type, typename Block>
struct unpacked_codes : Type {
    using block = Block;
    static constexpr bool UNPACKED = true, ODD_ARE_SIGNED = true;
    template <int K>
    static inline vi code(const Block & w, int s, int part) {
        return v_load(w.codes[VECTORS * s + K] + 4 * LANES * part);
    }
};

// Tile: of unpacked blocks, with `unpack` and `template <int NR, int V> add_block(vf (*acc)[NR], const block * const *,
// const int * part, const act * const *)`.
template <typename Tile>
void run_many(const dot_args & a) {
    constexpr int NR = Tile::MANY, V = 2, G = MANY_GROUPS;
    typename Tile::block piece[G][Tile::PIECE];
    const int64_t blocks = a.n / Tile::VALUES;
    for (int64_t b = 0; b < blocks; b += Tile::PIECE) {
        const int n = (int) std::min<int64_t>(Tile::PIECE, blocks - b);
        for (int64_t i = 0; i < a.n_w; i += G * WIDE) {
            const int64_t group[] = {i, std::min(i + WIDE, a.n_w - WIDE)};  // the last one is computed repeatedly
            for (int g = 0; g < G; ++g) {
                const auto * w = (const typename Tile::packed *) (a.w + group[g] / WIDE * a.w_stride) + b;
                for (int k = 0; k < n; ++k) {
                    Tile::unpack(w[k], piece[g][k]);
                }
            }
            const int64_t at[V] = {i, PARTS == 1 ? group[1] : i + LANES};
            for (int first = 0; first < a.n_act; first += NR) {
                const typename Tile::act * x[NR];
                float * dst[NR];
                for (int j = 0; j < NR; ++j) {  // the last row is computed repeatedly
                    const int row = std::min(first + j, a.n_act - 1);
                    x[j] = (const typename Tile::act *) a.act[row] + b;
                    dst[j] = a.dst[row];
                }
                vf acc[V][NR];
                each<1, V, NR>([&](auto, auto v, auto j)
                                   EAGLE_INLINE { acc[v][j] = b > 0 ? v_loadf(dst[j] + at[v]) : v_zerof(); });
                for (int k = 0; k < n; ++k) {
                    const typename Tile::block * w[V] = {&piece[0][k], &piece[G - 1][k]};
                    const int part[V] = {0, PARTS - 1};
                    Tile::template add_block<NR, V>(acc, w, part, x);
                    for (int j = 0; j < NR; ++j) {
                        ++x[j];
                    }
                }
                each<1, V, NR>([&](auto, auto v, auto j) EAGLE_INLINE { v_storef(dst[j] + at[v], acc[v][j]); });
            }
        }
    }
}

}  // namespace eagle

#endif  // EAGLE_SIMD
