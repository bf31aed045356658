// Q4_K, Q5_K, Q6_K and Q8_0 weights in our own layout: a lane is a weight row, so four activations are broadcast to all
// of them.
#include "eagle_pack_k.h"
#include "eagle_tile.h"
#include "eagle_wide.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

constexpr int PARTS = WIDE / LANES;  // vectors that hold one value (or four bytes) of each row

// A block's weights are asked for by eighths: all at once they would fill the queue of misses. Memory-bound passes want
// them nearer.
template <int NR, typename Block>
inline void prefetch_eighth(const Block & w, int part, int i) {
    constexpr int BYTES = sizeof(w) / 8, DISTANCE = NR <= 3 ? AHEAD / 2 : AHEAD;
    if (part == 0) {
        prefetch_ahead<BYTES, DISTANCE>((const char *) &w + i * BYTES);
    }
}

// --- Q6_K ------------------------------------------------------------------------------------------------------------

struct q6_K_wide {
    using block = block_q6_K_wide;

    // The four vectors of unsigned codes of sub-block s.
    static inline void unpack(const block & w, int s, int part, vi * q) {
        const vi nibble = v_set1_8(15), two = v_set1_8(0x30);
        const vi l0 = v_load(w.ql[s][0] + 4 * LANES * part), l1 = v_load(w.ql[s][1] + 4 * LANES * part);
        const vi h = v_load(w.qh[s] + 4 * LANES * part);
        q[0] = v_or(v_and(l0, nibble), v_and(v_shl16<4>(h), two));
        q[1] = v_or(v_and(v_shr16<4>(l0), nibble), v_and(v_shl16<2>(h), two));
        q[2] = v_or(v_and(l1, nibble), v_and(h, two));
        q[3] = v_or(v_and(v_shr16<4>(l1), nibble), v_and(v_shr16<2>(h), two));
    }

    template <int NR>
    static inline void add_sub_block(vi * sum, const vi * q, vi scale, int s, const act256 * const * x) {
        for (int j = 0; j < NR; ++j) {
            vi p = v_zero();
            for (int k = 0; k < 4; ++k) {
                p = v_dpbusd(p, q[k], v_bcast32(x[j]->qs + 16 * s + 4 * k));
            }
            sum[j] = v_add32(sum[j], v_mul32(p, scale));
        }
    }

    // The codes have 32 added: -32 * scale times the sum of its 16 activations takes that away.
    template <int NR>
    static inline void add_block(vf * acc, const block & w, int part, const act256 * const * x) {
        vi scales[8], sum[NR];
        for (int p = 0; p < 8; ++p) {
            scales[p] = v_widen8(w.scales[p][LANES * part]);
        }
        for (int j = 0; j < NR; ++j) {
            vi low = v_zero();
            for (int p = 0; p < 8; ++p) {
                low = v_dpwssd(low, scales[p], v_bcast32(x[j]->sums16 + 2 * p));
            }
            sum[j] = v_sub32(v_zero(), v_shl32<5>(low));
        }
        for (int p = 0; p < 8; ++p) {
            prefetch_eighth<NR>(w, part, p);
            vi q[4];
            unpack(w, 2 * p, part, q);
            add_sub_block<NR>(sum, q, v_sra32<16>(v_shl32<16>(scales[p])), 2 * p, x);
            unpack(w, 2 * p + 1, part, q);
            add_sub_block<NR>(sum, q, v_sra32<16>(scales[p]), 2 * p + 1, x);
        }
        const vf d = v_load_f16(w.d + LANES * part);
        for (int j = 0; j < NR; ++j) {
            acc[j] = v_fma(v_float(sum[j]), v_mul(d, v_set1f(x[j]->d)), acc[j]);
        }
    }
};

// --- Q4_K and Q5_K ---------------------------------------------------------------------------------------------------

inline void add_fifth_bits(const block_q4_K_wide &, int, int, vi *) {}

inline void add_fifth_bits(const block_q5_K_wide & w, int s, int part, vi * q) {
    const vi h = v_load(w.qh[s] + 4 * LANES * part), fifth = v_set1_8(16);
    const vi bits[8] = {v_shl16<4>(h), v_shl16<3>(h), v_shl16<2>(h), v_shl16<1>(h), h,
                        v_shr16<1>(h), v_shr16<2>(h), v_shr16<3>(h)};
    for (int v = 0; v < 8; ++v) {
        q[v] = v_or(q[v], v_and(bits[v], fifth));
    }
}

template <typename Block>
struct k_wide_with_mins {
    using block = Block;

    // The eight vectors of codes of sub-block s.
    static inline void unpack(const block & w, int s, int part, vi * q) {
        const vi nibble = v_set1_8(15);
        for (int i = 0; i < 4; ++i) {
            const vi l = v_load(w.ql[s][i] + 4 * LANES * part);
            q[2 * i] = v_and(l, nibble);
            q[2 * i + 1] = v_and(v_shr16<4>(l), nibble);
        }
        add_fifth_bits(w, s, part, q);
    }

    // Of the four scales (or mins) in the bytes of each lane, one.
    template <int BYTE>
    static inline vi byte_of(vi x) {
        return v_sra32<24>(v_shl32<24 - 8 * BYTE>(x));
    }

    // The last four scales, or mins: their low nibbles are given, their high bits are above the first four.
    static inline vi last_four(vi low, vi first) {
        return v_or(v_and(low, v_set1_8(15)), v_and(v_shr16<2>(first), v_set1_8(0x30)));
    }

    // Sub-blocks 4h to 4h + 3.
    template <int NR>
    static inline void add_half(vi * sum, const block & w, int h, int part, vi scales, const act256 * const * x) {
        const vi scale[4] = {byte_of<0>(scales), byte_of<1>(scales), byte_of<2>(scales), byte_of<3>(scales)};
        for (int s = 4 * h; s < 4 * h + 4; ++s) {
            prefetch_eighth<NR>(w, part, s);
            vi q[8];
            unpack(w, s, part, q);
            for (int j = 0; j < NR; ++j) {
                vi p = v_zero();
                for (int k = 0; k < 8; ++k) {
                    p = v_dpbusd(p, q[k], v_bcast32(x[j]->qs + 32 * s + 4 * k));
                }
                sum[j] = v_add32(sum[j], v_mul32(p, scale[s % 4]));
            }
        }
    }

    // 16-bit pairs of mins 0 and 1, 2 and 3, ... times the sums of their activations.
    static inline vi sum_of_mins(vi first, vi last, const act256 & x) {
        const vi byte = v_set1_16(0xff);
        vi low = v_dpwssd(v_zero(), v_and(first, byte), v_bcast32(x.sums32));
        low = v_dpwssd(low, v_and(v_shr16<8>(first), byte), v_bcast32(x.sums32 + 2));
        low = v_dpwssd(low, v_and(last, byte), v_bcast32(x.sums32 + 4));
        return v_dpwssd(low, v_and(v_shr16<8>(last), byte), v_bcast32(x.sums32 + 6));
    }

    template <int NR>
    static inline void add_block(vf * acc, const block & w, int part, const act256 * const * x) {
        const vi six = v_set1_8(0x3f);
        const vi u0 = v_load(w.scales[0][LANES * part]), u1 = v_load(w.scales[1][LANES * part]);
        const vi u2 = v_load(w.scales[2][LANES * part]);
        vi sum[NR];
        for (int j = 0; j < NR; ++j) {
            sum[j] = v_zero();
        }
        add_half<NR>(sum, w, 0, part, v_and(u0, six), x);
        add_half<NR>(sum, w, 1, part, last_four(u2, u0), x);
        const vi first = v_and(u1, six), last = last_four(v_shr16<4>(u2), u1);
        const vf d = v_load_f16(w.d + LANES * part), dmin = v_load_f16(w.dmin + LANES * part);
        for (int j = 0; j < NR; ++j) {
            const vf dx = v_set1f(x[j]->d);
            acc[j] = v_fma(v_float(sum[j]), v_mul(d, dx), acc[j]);
            acc[j] = v_fnma(v_float(sum_of_mins(first, last, *x[j])), v_mul(dmin, dx), acc[j]);
        }
    }
};

// --- tiles of the K-quants -------------------------------------------------------------------------------------------

template <typename Type>
struct tile_k_wide {
    static constexpr int STEP = WIDE;

    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const auto * w = (const typename Type::block *) (a.w + i / WIDE * a.w_stride);
        vf acc[PARTS][NR];
        for (int part = 0; part < PARTS; ++part) {
            for (int j = 0; j < NR; ++j) {
                acc[part][j] = v_zerof();
            }
        }
        for (int64_t b = 0; b < a.n / 256; ++b) {
            const act256 * x[NR];
            for (int j = 0; j < NR; ++j) {
                x[j] = (const act256 *) act[j] + b;
            }
            for (int part = 0; part < PARTS; ++part) {
                Type::template add_block<NR>(acc[part], w[b], part, x);
            }
        }
        for (int part = 0; part < PARTS; ++part) {
            for (int j = 0; j < NR; ++j) {
                v_storef(dst[j] + i + LANES * part, acc[part][j]);
            }
        }
    }
};

// --- Q8_0 ------------------------------------------------------------------------------------------------------------

// A row of activations: all scales, then -128 times each block's sum (the codes have 128 added), then the bytes.
size_t sums_size(int64_t n) {
    return (size_t) (n / 32 * sizeof(int32_t) + 63) / 64 * 64;
}

size_t act_size_q8_0(const kernel &, int64_t n) {
    return act32::scales(n) + sums_size(n) + (size_t) n;
}

void pack_q8_0(const kernel &, const float * x, void * act, int64_t n, int64_t begin, int64_t end) {
    float * d = (float *) act;
    int32_t * shift = (int32_t *) ((char *) act + act32::scales(n));
    int8_t * qs = (int8_t *) shift + sums_size(n);
    for (int64_t b = begin; b < end; ++b) {
        d[b] = pack32(x + 32 * b, qs + 32 * b);
        int sum = 0;
        for (int k = 0; k < 32; ++k) {
            sum += qs[32 * b + k];
        }
        shift[b] = -128 * sum;
    }
}

struct tile_q8_0_wide {
    static constexpr int STEP = WIDE;

    template <int NR>
    static inline void add_block(vf * acc, const block_q8_0_wide & w, int part, int64_t b, const char * const * act,
                                 int64_t n) {
        vi q[8];
        for (int k = 0; k < 8; ++k) {
            q[k] = v_load(w.qs[k] + 4 * LANES * part);
        }
        const vf d = v_load_f16(w.d + LANES * part);
        for (int j = 0; j < NR; ++j) {
            const char * shift = act[j] + act32::scales(n);
            const char * x = shift + sums_size(n) + 32 * b;
            vi sum = v_bcast32(shift + 4 * b);
            for (int k = 0; k < 8; ++k) {
                sum = v_dpbusd(sum, q[k], v_bcast32(x + 4 * k));
            }
            acc[j] = v_fma(v_float(sum), v_mul(d, v_set1f(((const float *) act[j])[b])), acc[j]);
        }
    }

    template <int NR>
    static void run(const dot_args & a, const char * const * act, float * const * dst, int64_t i) {
        const block_q8_0_wide * w = (const block_q8_0_wide *) (a.w + i / WIDE * a.w_stride);
        vf acc[PARTS][NR];
        for (int part = 0; part < PARTS; ++part) {
            for (int j = 0; j < NR; ++j) {
                acc[part][j] = v_zerof();
            }
        }
        for (int64_t b = 0; b < a.n / 32; ++b) {
            prefetch_ahead<sizeof(w[b])>(w + b);
            for (int part = 0; part < PARTS; ++part) {
                add_block<NR>(acc[part], w[b], part, b, act, a.n);
            }
        }
        for (int part = 0; part < PARTS; ++part) {
            for (int j = 0; j < NR; ++j) {
                v_storef(dst[j] + i + LANES * part, acc[part][j]);
            }
        }
    }
};

}  // namespace

const kernel kernel_q4_K_wide = {GGML_TYPE_Q4_K, WIDE,   256,
                                 act_size_k,     pack_k, run_tiles<tile_k_wide<k_wide_with_mins<block_q4_K_wide>>>};
const kernel kernel_q5_K_wide = {GGML_TYPE_Q5_K, WIDE,   256,
                                 act_size_k,     pack_k, run_tiles<tile_k_wide<k_wide_with_mins<block_q5_K_wide>>>};
const kernel kernel_q6_K_wide = {GGML_TYPE_Q6_K, WIDE, 256, act_size_k, pack_k, run_tiles<tile_k_wide<q6_K_wide>>};
const kernel kernel_q8_0_wide = {GGML_TYPE_Q8_0, WIDE, 32, act_size_q8_0, pack_q8_0, run_tiles<tile_q8_0_wide>};

}  // namespace eagle

#endif  // EAGLE_SIMD
