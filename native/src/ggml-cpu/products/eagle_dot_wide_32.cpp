// Weights in blocks of 32 in our repacked layout: each lane is a weight row, and four activations are broadcast to all
// lanes.
#include "eagle_pack.h"
#include "eagle_tile.h"
#include "eagle_wide_codes.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

// --- activations -----------------------------------------------------------------------------------------------------

template <typename Variant>
struct act_32 {
    float d;
    union {
        int32_t shift;  // minus the codes' offset times the sum of the values
        float sum;      // d times the sum of the values, for weights with a minimum
    };
    typename Variant::activation qs[32];
};

template <typename Type>
size_t act_size(const kernel &, int64_t n) {
    return ((size_t) (n / 32) * sizeof(act_32<products_32<Type::MAX>>) + 63) / 64 * 64;
}

template <typename Type>
void pack(const kernel &, const float * x, void * row, int64_t, int64_t begin, int64_t end) {
    using variant = products_32<Type::MAX>;
    for (int64_t b = begin; b < end; ++b) {
        auto & y = ((act_32<variant> *) row)[b];
        int8_t qs[32];
        y.d = pack32(x + 32 * b, qs);
        const int sum = variant::store(qs, y.qs);
        if constexpr (Type::HAS_MIN) {
            y.sum = y.d * (float) sum;
        } else {
            y.shift = -Type::OFFSET * sum;
        }
    }
}

// --- weights ---------------------------------------------------------------------------------------------------------

template <typename Codes>
struct with_scale : Codes {
    static constexpr int SUB = 32;
    static constexpr bool HAS_MIN = false;
    static inline vf scale(const typename Codes::block & w, int part) { return v_load_f16(w.d + LANES * part); }
};

template <typename Codes>
struct with_min : with_scale<Codes> {
    static constexpr bool HAS_MIN = true;
    static constexpr int OFFSET = 0;
    static inline vf min(const typename Codes::block & w, int part) { return v_load_f16(w.m + LANES * part); }
};

struct q4_0 : with_scale<plain_codes<block_q4_0_wide>> {
    static constexpr int MAX = 15, OFFSET = 8;
};
struct q4_1 : with_min<plain_codes<block_q4_1_wide>> {
    static constexpr int MAX = 15;
};
struct q5_0 : with_scale<plain_codes<block_q5_0_wide>> {
    static constexpr int MAX = 31, OFFSET = 16;
};
struct q5_1 : with_min<plain_codes<block_q5_1_wide>> {
    static constexpr int MAX = 31;
};
struct q8_0 : with_scale<plain_codes<block_q8_0_wide>> {
    static constexpr int MAX = 255, OFFSET = 128;
};
using iq4_nl = with_scale<table_codes<block_q4_0_wide, iq4_values>>;

// The scale is half of 2^(e - 127), because the values of the codes are doubled. For subnormal numbers the bit moves
// into the fraction.
struct mxfp4 : table_codes<block_mxfp4_wide, mxfp4_values> {
    static constexpr int SUB = 32;
    static constexpr bool HAS_MIN = false;
    static inline vf scale(const block & w, int part) {
        const vi e = v_load_u8(w.e + LANES * part), normal = v_shl32<23>(v_sub32(e, v_set1_32(1)));
        return v_as_float(v_select_above(e, v_set1_32(1), normal, v_shl32<21>(v_add32(e, v_set1_32(1)))));
    }
};

// --- products --------------------------------------------------------------------------------------------------------

template <typename Type>
struct tile_32 {
    using block = typename Type::block;
    using variant = products_32<Type::MAX>;
    using act = act_32<variant>;
    static constexpr int ROWS[] = {GROUPS > 1 ? 8 : 16, 16};

    // Adds to acc[..][FIRST ..].
    template <int NR, int V, int FIRST, int ALL>
    EAGLE_INLINE static inline void add_block(vf (*acc)[ALL], const block * const * w, const int * part,
                                              const act * const * x) {
        vi sum[V][NR];
        const typename variant::activation * qs[NR];
        for (int j = 0; j < NR; ++j) {
            const vi start = Type::HAS_MIN ? v_zero() : v_bcast32(&x[j]->shift);
            for (int v = 0; v < V; ++v) {
                sum[v][j] = start;
            }
            qs[j] = x[j]->qs;
        }
        add_32<Type, variant, false, NR, V, 0>(sum, w, part, 0, nullptr, qs, nullptr);
        unroll<V>([&](auto v) EAGLE_INLINE {
            const vf d = Type::scale(*w[v], part[v]);
            unroll<NR>([&](auto j) EAGLE_INLINE {
                vf & to = acc[v][FIRST + j];
                to = v_fma(v_float(sum[v][j]), v_mul(d, v_set1f(x[j]->d)), to);
            });
            if constexpr (Type::HAS_MIN) {
                const vf m = Type::min(*w[v], part[v]);
                unroll<NR>([&](auto j) EAGLE_INLINE {
                    vf & to = acc[v][FIRST + j];
                    to = v_fma(m, v_set1f(x[j]->sum), to);
                });
            }
        });
    }

    template <int NR, int G>
    static void run(const dot_args & a, const char * const * rows, float * const * dst, int64_t i) {
        using vectors = pass_vectors<variant, G>;
        constexpr int TURNS = vectors::TURNS, V = vectors::V;
        const block * w[V];
        const act * x[NR];
        vf acc[TURNS][V][NR];
        for (int v = 0; v < V; ++v) {
            w[v] = (const block *) (a.w + (i / WIDE + vectors::group(v)) * a.w_stride);
        }
        for (int j = 0; j < NR; ++j) {
            x[j] = (const act *) rows[j];
        }
        each<TURNS, V, NR>([&](auto turn, auto v, auto j) EAGLE_INLINE { acc[turn][v][j] = v_zerof(); });
        const int prefetch_bytes = a.tune.prefetch_bytes > 0 ? a.tune.prefetch_bytes : PREFETCH_BYTES;
        for (int64_t b = 0; b < a.n / 32; ++b) {
            for (int v = 0; v < V; v += vectors::TOGETHER) {
                prefetch<sizeof(block)>(w[v], prefetch_bytes, a.tune.prefetch_level);
            }
            unroll<TURNS>([&](auto turn) EAGLE_INLINE {
                int part[V];
                for (int v = 0; v < V; ++v) {
                    part[v] = vectors::part(turn, v);
                }
                take_turns<NR, variant::AT_ONCE>([&](auto first, auto n) EAGLE_INLINE {
                    add_block<decltype(n)::value, V, decltype(first)::value>(acc[turn], w, part, x + first);
                });
            });
            for (int j = 0; j < NR; ++j) {
                ++x[j];
            }
            for (int v = 0; v < V; ++v) {
                ++w[v];
            }
        }
        each<TURNS, V, NR>([&](auto turn, auto v, auto j)
                               EAGLE_INLINE { v_storef(dst[j] + i + vectors::row(turn, v), acc[turn][v][j]); });
    }
};

// --- many rows -------------------------------------------------------------------------------------------------------

template <bool HAS_MIN>
struct bytes_32 : byte_codes<8> {
    float d[WIDE], m[HAS_MIN ? WIDE : 1];
};

template <typename Type>
struct unpacked_32 : unpacked_codes<Type, bytes_32<Type::HAS_MIN>> {
    using block = bytes_32<Type::HAS_MIN>;
    static inline vf scale(const block & w, int part) { return v_loadf(w.d + LANES * part); }
    static inline vf min(const block & w, int part) { return v_loadf(w.m + LANES * part); }
};

template <typename Type>
struct many_32 : tile_32<unpacked_32<Type>> {
    using tile = tile_32<unpacked_32<Type>>;
    using typename tile::act;
    using typename tile::block;
    using packed = typename Type::block;
    static constexpr int VALUES = 32, PIECE = 32 / MANY_GROUPS, MANY = 5;

    static inline void unpack(const packed & from, block & to) {
        to.template unpack<Type>(from);
        for (int part = 0; part < PARTS; ++part) {
            v_storef(to.d + LANES * part, Type::scale(from, part));
            if constexpr (Type::HAS_MIN) {
                v_storef(to.m + LANES * part, Type::min(from, part));
            }
        }
    }

    template <int NR, int V>
    EAGLE_INLINE static inline void add_block(vf (*acc)[NR], const block * const * w, const int * part,
                                              const act * const * x) {
        tile::template add_block<NR, V, 0>(acc, w, part, x);
    }
};

template <typename Type>
constexpr kernel wide_32(ggml_type type) {
    kernel k = {type, WIDE, 32, act_size<Type>, pack<Type>, run_wide_tiles<tile_32<Type>>, true};
    if constexpr (!UNPACKING_IS_CHEAP || decltype(Type::block::codes)::HIGH_BITS > 0) {
        k.dot_many = run_many<many_32<Type>>;
        k.many_rows = UNPACKING_IS_CHEAP ? MAX_ROWS + 1 : CALL_ROWS + 1;
    }
    return k;
}

}  // namespace

const kernel kernel_q4_0_wide = wide_32<q4_0>(GGML_TYPE_Q4_0);
const kernel kernel_q4_1_wide = wide_32<q4_1>(GGML_TYPE_Q4_1);
const kernel kernel_q5_0_wide = wide_32<q5_0>(GGML_TYPE_Q5_0);
const kernel kernel_q5_1_wide = wide_32<q5_1>(GGML_TYPE_Q5_1);
const kernel kernel_q8_0_wide = wide_32<q8_0>(GGML_TYPE_Q8_0);
const kernel kernel_iq4_nl_wide = wide_32<iq4_nl>(GGML_TYPE_IQ4_NL);
const kernel kernel_mxfp4_wide = wide_32<mxfp4>(GGML_TYPE_MXFP4);

}  // namespace eagle

#endif  // EAGLE_SIMD
