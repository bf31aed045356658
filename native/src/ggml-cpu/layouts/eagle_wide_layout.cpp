// Conversion of the blocks of WIDE plain rows to one block of our repacked layout, and back.
#define GGML_COMMON_DECL_CPP
#include <cstring>

#include "eagle_simd.h"
#include "eagle_wide.h"
#include "ggml-common.h"

namespace eagle {
namespace {

// Masks for operations on four bytes at once; they remove bits that cross into another byte.
constexpr uint32_t LOW = 0x0f0f0f0f, BYTES = 0x01010101;

uint32_t word(const uint8_t * bytes) {
    uint32_t w;
    memcpy(&w, bytes, sizeof(w));
    return w;
}

void put(uint8_t * bytes, uint32_t w) {
    memcpy(bytes, &w, sizeof(w));
}

// --- the codes of a plain block, four to a word, in the order of their values ----------------------------------------

// HALF values are the low nibbles of HALF bytes, and the next HALF values their high nibbles.
template <int HALF>
void get_nibbles(const uint8_t * qs, int n_bytes, uint32_t * c) {
    for (int at = 0; at < n_bytes; at += HALF) {
        for (int i = 0; i < HALF / 4; ++i) {
            const uint32_t w = word(qs + at + 4 * i);
            c[at / 2 + i] = w & LOW;
            c[at / 2 + HALF / 4 + i] = w >> 4 & LOW;
        }
    }
}

template <int HALF>
void set_nibbles(const uint32_t * c, int n_bytes, uint8_t * qs) {
    for (int at = 0; at < n_bytes; at += HALF) {
        for (int i = 0; i < HALF / 4; ++i) {
            put(qs + at + 4 * i, (c[at / 2 + i] & LOW) | (c[at / 2 + HALF / 4 + i] & LOW) << 4);
        }
    }
}

// 128 values are in 32 bytes: each group of 32 values takes two bits of every byte.
void get_crumbs(const uint8_t * qs, int shift, uint32_t * c) {
    for (int v = 0; v < 64; ++v) {
        const uint32_t w = word(qs + v / 32 * 32 + v % 8 * 4);
        c[v] |= (w >> (2 * (v / 8 % 4)) & 3 * BYTES) << shift;
    }
}

void set_crumbs(const uint32_t * c, int shift, uint8_t * qs) {
    memset(qs, 0, 64);
    for (int v = 0; v < 64; ++v) {
        uint8_t * at = qs + v / 32 * 32 + v % 8 * 4;
        put(at, word(at) | (c[v] >> shift & 3 * BYTES) << (2 * (v / 8 % 4)));
    }
}

// Bit s of byte k belongs to value k of sub-block s, which has 32 values.
void get_bits(const uint8_t * qh, int shift, uint32_t * c) {
    for (int v = 0; v < 64; ++v) {
        c[v] |= (word(qh + v % 8 * 4) >> (v / 8) & BYTES) << shift;
    }
}

void set_bits(const uint32_t * c, int shift, uint8_t * qh) {
    memset(qh, 0, 32);
    for (int v = 0; v < 64; ++v) {
        put(qh + v % 8 * 4, word(qh + v % 8 * 4) | (c[v] >> shift & BYTES) << (v / 8));
    }
}

// Bit k of 32 bits belongs to value k.
void get_fifth_bits(const uint8_t * qh, uint32_t * c) {
    for (int k = 0; k < 32; ++k) {
        c[k / 4] |= (word(qh) >> k & 1u) << (8 * (k % 4) + 4);
    }
}

void set_fifth_bits(const uint32_t * c, uint8_t * qh) {
    uint32_t bits = 0;
    for (int k = 0; k < 32; ++k) {
        bits |= (c[k / 4] >> (8 * (k % 4) + 4) & 1u) << k;
    }
    put(qh, bits);
}

// Sign bits that differ from those of the plain type: codes have an offset of 128, but the odd ones are signed if words
// are multiplied (word_products).
#ifdef EAGLE_SIMD_VNNI
constexpr uint32_t Q8_0_SIGNS = 0x80 * BYTES;
#else
constexpr uint32_t Q8_0_SIGNS = 0x00800080;
#endif

void get_codes(const block_q8_0 & b, uint32_t * c) {
    for (int v = 0; v < 8; ++v) {
        c[v] = word((const uint8_t *) b.qs + 4 * v) ^ Q8_0_SIGNS;
    }
}

void set_codes(const uint32_t * c, block_q8_0 & b) {
    for (int v = 0; v < 8; ++v) {
        put((uint8_t *) b.qs + 4 * v, c[v] ^ Q8_0_SIGNS);
    }
}

template <typename Plain>
void get_codes(const Plain & b, uint32_t * c) {  // Q4_0, Q4_1, IQ4_NL, MXFP4, IQ4_XS
    get_nibbles<16>(b.qs, sizeof(b.qs), c);
}

template <typename Plain>
void set_codes(const uint32_t * c, Plain & b) {
    set_nibbles<16>(c, sizeof(b.qs), b.qs);
}

template <typename Plain>
void get_codes_5(const Plain & b, uint32_t * c) {
    get_nibbles<16>(b.qs, 16, c);
    get_fifth_bits(b.qh, c);
}

template <typename Plain>
void set_codes_5(const uint32_t * c, Plain & b) {
    set_nibbles<16>(c, 16, b.qs);
    set_fifth_bits(c, b.qh);
}

void get_codes(const block_q5_0 & b, uint32_t * c) {
    get_codes_5(b, c);
}
void set_codes(const uint32_t * c, block_q5_0 & b) {
    set_codes_5(c, b);
}
void get_codes(const block_q5_1 & b, uint32_t * c) {
    get_codes_5(b, c);
}
void set_codes(const uint32_t * c, block_q5_1 & b) {
    set_codes_5(c, b);
}

void get_codes(const block_q2_K & b, uint32_t * c) {
    memset(c, 0, 64 * sizeof(*c));
    get_crumbs(b.qs, 0, c);
}

void set_codes(const uint32_t * c, block_q2_K & b) {
    set_crumbs(c, 0, b.qs);
}

void get_codes(const block_q3_K & b, uint32_t * c) {
    memset(c, 0, 64 * sizeof(*c));
    get_crumbs(b.qs, 0, c);
    get_bits(b.hmask, 2, c);
}

void set_codes(const uint32_t * c, block_q3_K & b) {
    set_crumbs(c, 0, b.qs);
    set_bits(c, 2, b.hmask);
}

void get_codes(const block_q4_K & b, uint32_t * c) {
    get_nibbles<32>(b.qs, 128, c);
}

void set_codes(const uint32_t * c, block_q4_K & b) {
    set_nibbles<32>(c, 128, b.qs);
}

void get_codes(const block_q5_K & b, uint32_t * c) {
    get_nibbles<32>(b.qs, 128, c);
    get_bits(b.qh, 4, c);
}

void set_codes(const uint32_t * c, block_q5_K & b) {
    set_nibbles<32>(c, 128, b.qs);
    set_bits(c, 4, b.qh);
}

void get_codes(const block_q6_K & b, uint32_t * c) {
    get_nibbles<64>(b.ql, 128, c);
    get_crumbs(b.qh, 4, c);
}

void set_codes(const uint32_t * c, block_q6_K & b) {
    set_nibbles<64>(c, 128, b.ql);
    set_crumbs(c, 4, b.qh);
}

// --- codes of one row among those of a group -------------------------------------------------------------------------

// Copies BITS bits of each code from bit `shift` on.
template <int BITS>
void join_bits(const uint32_t * c, int n, int shift, int r, uint8_t (*out)[4 * WIDE]) {
    constexpr int PER = 8 / BITS;
    constexpr uint32_t MASK = ((1u << BITS) - 1) * BYTES;
    for (int i = 0; i < n / PER; ++i) {
        uint32_t w = 0;
        for (int v = 0; v < PER; ++v) {
            w |= (c[PER * i + v] >> shift & MASK) << (BITS * v);
        }
        put(out[i] + 4 * r, w);
    }
}

template <int BITS>
void split_bits(const uint8_t (*in)[4 * WIDE], int n, int shift, int r, uint32_t * c) {
    constexpr int PER = 8 / BITS;
    constexpr uint32_t MASK = ((1u << BITS) - 1) * BYTES;
    for (int v = 0; v < n; ++v) {
        c[v] |= (word(in[v / PER] + 4 * r) >> (BITS * (v % PER)) & MASK) << shift;
    }
}

template <typename Codes>
void join_codes(const uint32_t * c, int r, Codes & out) {
    join_bits<Codes::LOW_BITS>(c, Codes::VECTORS, 0, r, out.low);
    if constexpr (Codes::HIGH_BITS > 0) {
        join_bits<Codes::HIGH_BITS>(c, Codes::VECTORS, Codes::LOW_BITS, r, out.high);
    }
}

template <typename Codes>
void split_codes(const Codes & in, int r, uint32_t * c) {
    memset(c, 0, Codes::VECTORS * sizeof(*c));
    split_bits<Codes::LOW_BITS>(in.low, Codes::VECTORS, 0, r, c);
    if constexpr (Codes::HIGH_BITS > 0) {
        split_bits<Codes::HIGH_BITS>(in.high, Codes::VECTORS, Codes::LOW_BITS, r, c);
    }
}

// --- scales ----------------------------------------------------------------------------------------------------------

// Calls `copy` with each scale of a plain block and its place in row r of the repacked block.
template <typename Plain, typename Wide, typename Copy>
void each_scale(Plain & b, Wide & w, int r, Copy copy) {
    copy(b.d, w.d[r]);
}

template <typename Copy>
void each_scale(block_q4_1 & b, block_q4_1_wide & w, int r, Copy copy) {
    copy(b.data.data.d, w.d[r]);
    copy(b.data.data.m, w.m[r]);
}

template <typename Copy>
void each_scale(block_q5_1 & b, block_q5_1_wide & w, int r, Copy copy) {
    copy(b.data.data.d, w.d[r]);
    copy(b.data.data.m, w.m[r]);
}

template <typename Copy>
void each_scale(block_mxfp4 & b, block_mxfp4_wide & w, int r, Copy copy) {
    copy(b.e, w.e[r]);
}

template <typename Copy>
void each_scale(block_iq4_xs & b, block_iq4_xs_wide & w, int r, Copy copy) {
    copy(b.d, w.d[r]);
    copy(b.scales_h, w.scales_h[r]);
    for (int k = 0; k < 4; ++k) {
        copy(b.scales_l[k], w.scales_l[r][k]);
    }
}

template <typename Plain, typename Wide, typename Copy>
void each_packed_scale(Plain & b, Wide & w, int r, Copy copy) {
    for (size_t k = 0; k < sizeof(b.scales); ++k) {
        copy(b.scales[k], w.scales[k / 4][r][k % 4]);
    }
}

template <typename Plain, typename Wide, typename Copy>
void each_scale_and_min(Plain & b, Wide & w, int r, Copy copy) {
    copy(b.data.data.d, w.d[r]);
    copy(b.data.data.dmin, w.dmin[r]);
    each_packed_scale(b, w, r, copy);
}

template <typename Copy>
void each_scale(block_q2_K & b, block_q2_K_wide & w, int r, Copy copy) {
    each_scale_and_min(b, w, r, copy);
}

template <typename Copy>
void each_scale(block_q3_K & b, block_q3_K_wide & w, int r, Copy copy) {
    copy(b.d, w.d[r]);
    each_packed_scale(b, w, r, copy);
}

template <typename Copy>
void each_scale(block_q4_K & b, block_q4_K_wide & w, int r, Copy copy) {
    each_scale_and_min(b, w, r, copy);
}

template <typename Copy>
void each_scale(block_q5_K & b, block_q5_K_wide & w, int r, Copy copy) {
    each_scale_and_min(b, w, r, copy);
}

template <typename Copy>
void each_scale(block_q6_K & b, block_q6_K_wide & w, int r, Copy copy) {
    copy(b.d, w.d[r]);
    each_packed_scale(b, w, r, copy);
}

// --- blocks ----------------------------------------------------------------------------------------------------------

struct join {
    template <typename Plain, typename Wide>
    void operator()(Plain * const * row, Wide & w) const {
        for (int r = 0; r < WIDE; ++r) {
            uint32_t c[decltype(w.codes)::VECTORS];
            get_codes(*row[r], c);
            join_codes(c, r, w.codes);
            each_scale(*row[r], w, r, [](const auto & plain, auto & wide) { wide = plain; });
        }
    }
};

struct split {
    template <typename Plain, typename Wide>
    void operator()(Plain * const * row, Wide & w) const {
        for (int r = 0; r < WIDE; ++r) {
            uint32_t c[decltype(w.codes)::VECTORS];
            split_codes(w.codes, r, c);
            set_codes(c, *row[r]);
            each_scale(*row[r], w, r, [](auto & plain, const auto & wide) { plain = wide; });
        }
    }
};

template <typename Plain, typename Wide, typename Turn>
void each_block(const ggml_tensor * t, Plain * plain, Wide * wide, Turn turn) {
    static_assert(sizeof(Wide) == WIDE * sizeof(Plain), "a group takes the bytes of its rows");
    const int64_t blocks = t->ne[0] / ggml_blck_size(t->type);
    for (int64_t g = 0; g < ggml_nrows(t) / WIDE; ++g) {
        for (int64_t b = 0; b < blocks; ++b) {
            Plain * row[WIDE];
            for (int r = 0; r < WIDE; ++r) {
                row[r] = plain + (g * WIDE + r) * blocks + b;
            }
            turn(row, wide[g * blocks + b]);
        }
    }
}

template <typename Turn>
void turn_blocks(const ggml_tensor * t, void * plain, void * wide, Turn turn) {
    switch (t->type) {
    case GGML_TYPE_Q8_0:
        return each_block(t, (block_q8_0 *) plain, (block_q8_0_wide *) wide, turn);
    case GGML_TYPE_Q4_0:
        return each_block(t, (block_q4_0 *) plain, (block_q4_0_wide *) wide, turn);
    case GGML_TYPE_Q4_1:
        return each_block(t, (block_q4_1 *) plain, (block_q4_1_wide *) wide, turn);
    case GGML_TYPE_Q5_0:
        return each_block(t, (block_q5_0 *) plain, (block_q5_0_wide *) wide, turn);
    case GGML_TYPE_Q5_1:
        return each_block(t, (block_q5_1 *) plain, (block_q5_1_wide *) wide, turn);
    case GGML_TYPE_IQ4_NL:
        return each_block(t, (block_iq4_nl *) plain, (block_q4_0_wide *) wide, turn);
    case GGML_TYPE_MXFP4:
        return each_block(t, (block_mxfp4 *) plain, (block_mxfp4_wide *) wide, turn);
    case GGML_TYPE_Q2_K:
        return each_block(t, (block_q2_K *) plain, (block_q2_K_wide *) wide, turn);
    case GGML_TYPE_Q3_K:
        return each_block(t, (block_q3_K *) plain, (block_q3_K_wide *) wide, turn);
    case GGML_TYPE_Q4_K:
        return each_block(t, (block_q4_K *) plain, (block_q4_K_wide *) wide, turn);
    case GGML_TYPE_Q5_K:
        return each_block(t, (block_q5_K *) plain, (block_q5_K_wide *) wide, turn);
    case GGML_TYPE_Q6_K:
        return each_block(t, (block_q6_K *) plain, (block_q6_K_wide *) wide, turn);
    case GGML_TYPE_IQ4_XS:
        return each_block(t, (block_iq4_xs *) plain, (block_iq4_xs_wide *) wide, turn);
    default:
        GGML_ABORT("no wide layout of %s", ggml_type_name(t->type));
    }
}

}  // namespace

void to_wide(const ggml_tensor * w, const void * plain, void * wide) {
    turn_blocks(w, const_cast<void *>(plain), wide, join());
}

void from_wide(const ggml_tensor * w, const void * wide, void * plain) {
    turn_blocks(w, plain, const_cast<void *>(wide), split());
}

}  // namespace eagle
