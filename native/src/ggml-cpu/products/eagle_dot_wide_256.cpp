// Weights in blocks of 256 in our repacked layout: each lane is a weight row, and four activations are broadcast to all
// lanes. Scales are small integers, so a whole block is summed in integers.
#include "eagle_pack_k.h"
#include "eagle_tile.h"
#include "eagle_wide_codes.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

// Prefetches one eighth of a block: all of it at once would fill the line-fill buffers.
template <typename Block>
EAGLE_INLINE inline void prefetch_eighth(const Block & w, int part, int i, int prefetch_bytes, int prefetch_level) {
    if (part == 0) {
        prefetch<sizeof(w) / 8>((const char *) &w + i * (sizeof(w) / 8), prefetch_bytes, prefetch_level);
    }
}

// --- scales ----------------------------------------------------------------------------------------------------------
//
// Scales (SIGNED or not), and mins if codes have no OFFSET: one byte each, four per lane and vector.

inline vi and_8(vi x, int mask) {
    return v_and(x, v_set1_8(mask));
}

inline vi scale_bytes(const uint8_t (*scales)[4], int part) {
    return v_load(scales[LANES * part]);
}

struct q2_K : plain_codes<block_q2_K_wide> {
    static constexpr int SUB = 16, MAX = 3, OFFSET = 0;
    static constexpr bool SIGNED = false;
    static inline void scales(const block & w, int part, vi * scale, vi * min) {
        for (int i = 0; i < 4; ++i) {
            const vi u = scale_bytes(w.scales[i], part);
            scale[i] = and_8(u, 15);
            min[i] = and_8(v_shr16<4>(u), 15);
        }
    }
};

struct q3_K : plain_codes<block_q3_K_wide> {
    static constexpr int SUB = 16, MAX = 7, OFFSET = 4;
    static constexpr bool SIGNED = true;
    static inline void scales(const block & w, int part, vi * scale, vi *) {
        const vi u[2] = {scale_bytes(w.scales[0], part), scale_bytes(w.scales[1], part)};
        const vi top = scale_bytes(w.scales[2], part);
        const vi tops[4] = {top, v_shr16<2>(top), v_shr16<4>(top), v_shr16<6>(top)};
        for (int i = 0; i < 4; ++i) {
            const vi low = i < 2 ? u[i] : v_shr16<4>(u[i - 2]);
            scale[i] = v_sub8(v_or(and_8(low, 15), v_shl16<4>(and_8(tops[i], 3))), v_set1_8(32));
        }
    }
};

// The first four scales and mins have six bits in a byte each. The other four have their low nibbles in one byte, and
// their high bits above those of the first four.
template <typename Block, int LARGEST>
struct q45_K : plain_codes<Block> {
    static constexpr int SUB = 32, MAX = LARGEST, OFFSET = 0;
    static constexpr bool SIGNED = false;
    static inline vi last_four(vi low, vi first) { return v_or(and_8(low, 15), and_8(v_shr16<2>(first), 0x30)); }
    static inline void scales(const Block & w, int part, vi * scale, vi * min) {
        const vi u0 = scale_bytes(w.scales[0], part), u1 = scale_bytes(w.scales[1], part);
        const vi u2 = scale_bytes(w.scales[2], part);
        scale[0] = and_8(u0, 63);
        scale[1] = last_four(u2, u0);
        min[0] = and_8(u1, 63);
        min[1] = last_four(v_shr16<4>(u2), u1);
    }
};

using q4_K = q45_K<block_q4_K_wide, 15>;
using q5_K = q45_K<block_q5_K_wide, 31>;

struct q6_K : plain_codes<block_q6_K_wide> {
    static constexpr int SUB = 16, MAX = 63, OFFSET = 32;
    static constexpr bool SIGNED = true;
    static inline void scales(const block & w, int part, vi * scale, vi *) {
        for (int i = 0; i < 4; ++i) {
            scale[i] = scale_bytes(w.scales[i], part);
        }
    }
};

struct iq4_xs : table_codes<block_iq4_xs_wide, iq4_values> {
    static constexpr int SUB = 32;
    static constexpr bool SIGNED = true;
    // Combines nibbles of two bytes with two high bits each.
    static inline vi four(vi low, vi high) {
        const vi nibbles = v_or(v_and(low, v_set1_32(0x000f000f)), v_and(v_shr16<4>(low), v_set1_32(0x0f000f00)));
        const vi first = v_or(v_and(v_shl16<4>(high), v_set1_32(0x30)), v_and(v_shl16<2>(high), v_set1_32(0x3000)));
        const vi last = v_or(v_and(high, v_set1_32(0x300000)), v_and(v_shr16<2>(high), v_set1_32(0x30000000)));
        return v_sub8(v_or(nibbles, v_or(first, last)), v_set1_8(32));
    }
    static inline void scales(const block & w, int part, vi * scale, vi *) {
        const vi low = v_load(w.scales_l[LANES * part]), high = v_load_u16(w.scales_h + LANES * part);
        scale[0] = four(v_bytes<0, 0, 1, 1>(low), v_bytes<0, 0, 0, 0>(high));
        scale[1] = four(v_bytes<2, 2, 3, 3>(low), v_bytes<1, 1, 1, 1>(high));
    }
};

// --- activations of centered products --------------------------------------------------------------------------------

// starts[i]: where the sums of the values from SUB * i start.
template <int SUB>
struct act256_centered : act256 {
    int32_t starts[256 / SUB];
    static size_t of_row(const kernel &, int64_t n) { return (size_t) (n / 256) * sizeof(act256_centered); }
};

template <typename Type, typename variant>
void pack_centered(const kernel & k, const float * x, void * row, int64_t n, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
        auto & y = ((act256_centered<Type::SUB> *) row)[b];
        pack_k(k, x + 256 * b, (act256 *) &y, n, 0, 1);
        for (int i = 0; i < 256 / Type::SUB; ++i) {
            int sums[2] = {0, 0};
            for (int v = 0; v < Type::SUB; ++v) {
                sums[v / 2 % 2] += y.qs[Type::SUB * i + v];
            }
            y.starts[i] = variant::start(sums[0], sums[1]);
        }
    }
}

// --- products --------------------------------------------------------------------------------------------------------

#ifdef EAGLE_SIMD_VNNI
constexpr int MAX_CENTERED = 255;
constexpr bool CENTERED_IF_UNPACKED = true;  // with AVX-512, Q6_K and few rows, loads limit more than products
#else
constexpr int MAX_CENTERED = 63;  // sums must fit in 16 bits
constexpr bool CENTERED_IF_UNPACKED = false;
#endif

template <typename Type>
using products_256 = std::conditional_t<Type::OFFSET != 0 && Type::MAX <= MAX_CENTERED,
                                        centered_products<Type::MAX, Type::OFFSET>, products<Type::MAX>>;

template <typename Type>
struct tile_256 {
    using block = typename Type::block;
    using act = std::conditional_t<products_256<Type>::CENTERED, act256_centered<Type::SUB>, act256>;
    using variant =
        std::conditional_t<CENTERED_IF_UNPACKED && !Type::UNPACKED, products<Type::MAX>, products_256<Type>>;
    static constexpr int SCALES = 256 / Type::SUB, ROWS[] = {variant::ROWS, Type::SUB == 16 ? 5 : 8};
    static constexpr int AT_ONCE = LANES == WIDE ? variant::ROWS : variant::AT_ONCE;  // AVX-512 has the registers
    static constexpr bool CORRECTED = Type::OFFSET != 0 && !variant::CENTERED;

    // Multiplies adjacent 16-bit pairs by the sums of their activations.
    static inline vi sum_of(const vi * pair, const act256 & x) {
        const int16_t * sums = Type::SUB == 16 ? x.sums16 : x.sums32;
        vi sum = v_zero();
        for (int p = 0; p < SCALES / 2; ++p) {
            sum = v_dpwssd(sum, pair[p], v_bcast32(sums + 2 * p));
        }
        return sum;
    }

    // Computes the factors of the scales, and of the sums of activations for products that are not centered.
    template <bool IS_CENTERED>
    EAGLE_INLINE static inline void factors(const block & w, int part, vi * scale, vi * pair) {
        vi bytes[SCALES / 4], min[SCALES / 4];
        Type::scales(w, part, bytes, min);
        unroll<SCALES>([&](auto i)
                           EAGLE_INLINE { scale[i] = variant::template scale<Type::SIGNED, i % 4>(bytes[i / 4]); });
        if constexpr (!IS_CENTERED) {
            unroll<SCALES / 2>([&](auto p) EAGLE_INLINE {
                constexpr int FIRST = 2 * p % 4;
                pair[p] = Type::OFFSET != 0 ? v_pair16<Type::SIGNED, FIRST, FIRST + 1>(bytes[p / 2])
                                            : v_pair16<false, FIRST, FIRST + 1>(min[p / 2]);
            });
        }
    }

    // Subtracts the contribution of the codes' offset, or of the mins.
    template <int NR, int V>
    EAGLE_INLINE static inline void add_block(vf (*acc)[NR], const block * const * w, const int * part,
                                              const act * const * x, int prefetch_bytes, int prefetch_level) {
        vi own_scale[V][SCALES], own_pair[V][SCALES / 2], sum[V][NR];
        const vi *scale[V], *pair[V], *scales[V];
        for (int v = 0; v < V; ++v) {
            if constexpr (Type::UNPACKED) {
                scale[v] = w[v]->scale[part[v]];
                pair[v] = w[v]->pair[part[v]];
            } else {
                factors<variant::CENTERED>(*w[v], part[v], own_scale[v], own_pair[v]);
                scale[v] = own_scale[v];
                pair[v] = own_pair[v];
            }
            for (int j = 0; j < NR; ++j) {
                sum[v][j] = CORRECTED ? v_mul32(sum_of(pair[v], *x[j]), v_set1_32(-Type::OFFSET)) : v_zero();
            }
        }
        for (int s = 0; s < 8; ++s) {
            for (int v = 0; v < V; ++v) {
                if constexpr (!Type::UNPACKED) {
                    prefetch_eighth(*w[v], part[v], s, prefetch_bytes, prefetch_level);
                }
                scales[v] = scale[v] + 32 / Type::SUB * s;
            }
            const int8_t * qs[NR];
            const int32_t * start[NR] = {};
            for (int j = 0; j < NR; ++j) {
                qs[j] = x[j]->qs + 32 * s;
                if constexpr (variant::CENTERED) {
                    start[j] = x[j]->starts + 32 / Type::SUB * s;
                }
            }
            if constexpr (NR <= AT_ONCE) {
                add_32<Type, variant, true, NR, V, 0>(sum, w, part, s, scales, qs, start);
            } else {
                take_turns<NR, AT_ONCE>([&](auto first, auto n) EAGLE_INLINE {
                    add_32<Type, variant, true, decltype(n)::value, V, decltype(first)::value>(sum, w, part, s, scales,
                                                                                               qs, start);
                });
            }
        }
        unroll<V>([&](auto v) EAGLE_INLINE {
            const vf d = load_scale(w[v]->d + LANES * part[v]);
            unroll<NR>([&](auto j) EAGLE_INLINE {
                acc[v][j] = v_fma(v_float(sum[v][j]), v_mul(d, v_set1f(x[j]->d)), acc[v][j]);
            });
            if constexpr (Type::OFFSET == 0) {
                const vf dmin = load_scale(w[v]->dmin + LANES * part[v]);
                unroll<NR>([&](auto j) EAGLE_INLINE {
                    acc[v][j] = v_fnma(v_float(sum_of(pair[v], *x[j])), v_mul(dmin, v_set1f(x[j]->d)), acc[v][j]);
                });
            }
        });
    }

    template <int NR, int G>
    static void run(const dot_args & a, const char * const * rows, float * const * dst, int64_t i) {
        using vectors = pass_vectors<variant, G>;
        constexpr int TURNS = vectors::TURNS, V = vectors::V;
        const block * w[V];
        vf acc[TURNS][V][NR];
        for (int v = 0; v < V; ++v) {
            w[v] = (const block *) (a.w + (i / WIDE + vectors::group(v)) * a.w_stride);
        }
        each<TURNS, V, NR>([&](auto turn, auto v, auto j) EAGLE_INLINE { acc[turn][v][j] = v_zerof(); });
        const int own = NR <= 3 ? PREFETCH_BYTES / 2 : PREFETCH_BYTES;  // memory-bound passes need a shorter distance
        const int prefetch_bytes = a.tune.prefetch_bytes > 0 ? a.tune.prefetch_bytes : own;
        for (int64_t b = 0; b < a.n / 256; ++b) {
            const act * x[NR];
            for (int j = 0; j < NR; ++j) {
                x[j] = (const act *) rows[j] + b;
            }
            unroll<TURNS>([&](auto turn) EAGLE_INLINE {
                int part[V];
                for (int v = 0; v < V; ++v) {
                    part[v] = vectors::part(turn, v);
                }
                add_block<NR, V>(acc[turn], w, part, x, prefetch_bytes, a.tune.prefetch_level);
                forget_loads();
            });
            for (int v = 0; v < V; ++v) {
                ++w[v];
            }
        }
        each<TURNS, V, NR>([&](auto turn, auto v, auto j)
                               EAGLE_INLINE { v_storef(dst[j] + i + vectors::row(turn, v), acc[turn][v][j]); });
    }
};

// --- many rows -------------------------------------------------------------------------------------------------------

template <typename Type>
struct bytes_256 : byte_codes<64> {
    using tile = tile_256<Type>;
    vi scale[PARTS][tile::SCALES], pair[PARTS][products_256<Type>::CENTERED ? 1 : tile::SCALES / 2];
    float d[WIDE], dmin[Type::OFFSET == 0 ? WIDE : 1];
};

template <typename Type>
struct many_256 : tile_256<unpacked_codes<Type, bytes_256<Type>>> {
    using tile = tile_256<unpacked_codes<Type, bytes_256<Type>>>;
    using typename tile::act;
    using typename tile::block;
    using packed = typename Type::block;
    static constexpr int VALUES = 256, PIECE = 4 / MANY_GROUPS, MANY = LANES == WIDE && Type::SUB == 32 ? 8 : 5;

    static inline void unpack(const packed & from, block & to) {
        to.template unpack<Type>(from);
        for (int part = 0; part < PARTS; ++part) {
            tile_256<Type>::template factors<tile::variant::CENTERED>(from, part, to.scale[part], to.pair[part]);
            v_storef(to.d + LANES * part, v_load_f16(from.d + LANES * part));
            if constexpr (Type::OFFSET == 0) {
                v_storef(to.dmin + LANES * part, v_load_f16(from.dmin + LANES * part));
            }
        }
    }

    template <int NR, int V>
    EAGLE_INLINE static inline void add_block(vf (*acc)[NR], const block * const * w, const int * part,
                                              const act * const * x) {
        tile::template add_block<NR, V>(acc, w, part, x, 0, 0);
    }
};

template <typename Type>
constexpr kernel wide_256(ggml_type type) {
    kernel k = {type, WIDE, 256, act_size_k, pack_k, run_wide_tiles<tile_256<Type>>, true};
    if constexpr (products_256<Type>::CENTERED) {
        k.act_size = act256_centered<Type::SUB>::of_row;
        k.pack = pack_centered<Type, products_256<Type>>;
    }
    if constexpr (Type::MAX <= MAX_CENTERED && (!UNPACKING_IS_CHEAP || Type::MAX > 3)) {
        k.dot_many = run_many<many_256<Type>>;
        k.many_rows = UNPACKING_IS_CHEAP && Type::OFFSET == 0 ? MAX_ROWS + 1 : CALL_ROWS + 1;
    }
    return k;
}

}  // namespace

const kernel kernel_q2_K_wide = wide_256<q2_K>(GGML_TYPE_Q2_K);
const kernel kernel_q3_K_wide = wide_256<q3_K>(GGML_TYPE_Q3_K);
const kernel kernel_q4_K_wide = wide_256<q4_K>(GGML_TYPE_Q4_K);
const kernel kernel_q5_K_wide = wide_256<q5_K>(GGML_TYPE_Q5_K);
const kernel kernel_q6_K_wide = wide_256<q6_K>(GGML_TYPE_Q6_K);
const kernel kernel_iq4_xs_wide = wide_256<iq4_xs>(GGML_TYPE_IQ4_XS);

}  // namespace eagle

#endif  // EAGLE_SIMD
