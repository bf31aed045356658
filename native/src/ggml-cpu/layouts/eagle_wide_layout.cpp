// Plain blocks of WIDE rows to one wide block, and back.
#define GGML_COMMON_DECL_CPP
#include <cstring>
#include <utility>

#include "eagle_kernels.h"
#include "eagle_wide.h"
#include "ggml-common.h"

namespace eagle {
namespace {

// `row[r]` is the block of row r.
void join(const block_q8_0 * const * row, block_q8_0_wide & w) {
    for (int r = 0; r < WIDE; ++r) {
        w.d[r] = row[r]->d;
        for (int k = 0; k < 32; ++k) {
            w.qs[k / 4][4 * r + k % 4] = (uint8_t) (row[r]->qs[k] ^ 0x80);
        }
    }
}

void split(const block_q8_0_wide & w, block_q8_0 * const * row) {
    for (int r = 0; r < WIDE; ++r) {
        row[r]->d = w.d[r];
        for (int k = 0; k < 32; ++k) {
            row[r]->qs[k] = (int8_t) (w.qs[k / 4][4 * r + k % 4] ^ 0x80);
        }
    }
}

// Four bytes at once: shifts stay within each, the masks see to that.
constexpr uint32_t LOW = 0x0f0f0f0f, HIGH = 0xf0f0f0f0, BIT = 0x01010101;

uint32_t word(const uint8_t * bytes) {
    uint32_t w;
    memcpy(&w, bytes, sizeof(w));
    return w;
}

void put(uint8_t * bytes, uint32_t w) {
    memcpy(bytes, &w, sizeof(w));
}

// Of 64 values of a plain block, the first 32 are low nibbles, the others the high nibbles of the same bytes.
template <typename Plain, typename Wide>
void join_nibbles(const Plain & b, int r, Wide & w) {
    for (int s = 0; s < 8; s += 2) {
        for (int i = 0; i < 4; ++i) {
            const uint32_t even = word(b.qs + 16 * s + 8 * i), odd = word(b.qs + 16 * s + 8 * i + 4);
            put(w.ql[s][i] + 4 * r, (even & LOW) | (odd & LOW) << 4);
            put(w.ql[s + 1][i] + 4 * r, (even >> 4 & LOW) | (odd & HIGH));
        }
    }
}

template <typename Plain, typename Wide>
void split_nibbles(const Wide & w, int r, Plain & b) {
    for (int s = 0; s < 8; s += 2) {
        for (int i = 0; i < 4; ++i) {
            const uint32_t low = word(w.ql[s][i] + 4 * r), high = word(w.ql[s + 1][i] + 4 * r);
            put(b.qs + 16 * s + 8 * i, (low & LOW) | (high & LOW) << 4);
            put(b.qs + 16 * s + 8 * i + 4, (low >> 4 & LOW) | (high & HIGH));
        }
    }
}

void join_fifth_bits(const block_q4_K &, int, block_q4_K_wide &) {}
void split_fifth_bits(const block_q4_K_wide &, int, block_q4_K &) {}

// Bit s of byte k of a plain block belongs to value k of sub-block s.
void join_fifth_bits(const block_q5_K & b, int r, block_q5_K_wide & w) {
    for (int s = 0; s < 8; ++s) {
        uint32_t bits = 0;
        for (int v = 0; v < 8; ++v) {
            bits |= (word(b.qh + 4 * v) >> s & BIT) << v;
        }
        put(w.qh[s] + 4 * r, bits);
    }
}

void split_fifth_bits(const block_q5_K_wide & w, int r, block_q5_K & b) {
    for (int v = 0; v < 8; ++v) {
        uint32_t bits = 0;
        for (int s = 0; s < 8; ++s) {
            bits |= (word(w.qh[s] + 4 * r) >> v & BIT) << s;
        }
        put(b.qh + 4 * v, bits);
    }
}

// Bytes 0..3, 4..7 and 8..11 of a plain block's scales are scales[0], [1] and [2], but for the order of the mins.
void exchange_mins(uint8_t * scales) {
    std::swap(scales[5], scales[6]);  // mins 1 and 2, and the high bits of mins 5 and 6
    const uint8_t min5 = scales[9] & 0xf0, min6 = scales[10] & 0xf0;
    scales[9] = (uint8_t) ((scales[9] & 15) | min6);
    scales[10] = (uint8_t) ((scales[10] & 15) | min5);
}

// Q4_K and Q5_K
template <typename Plain, typename Wide>
void join(const Plain * const * row, Wide & w) {
    for (int r = 0; r < WIDE; ++r) {
        uint8_t scales[12];
        memcpy(scales, row[r]->scales, sizeof(scales));
        exchange_mins(scales);
        for (int i = 0; i < 3; ++i) {
            memcpy(w.scales[i][r], scales + 4 * i, 4);
        }
        w.d[r] = row[r]->data.data.d;
        w.dmin[r] = row[r]->data.data.dmin;
        join_nibbles(*row[r], r, w);
        join_fifth_bits(*row[r], r, w);
    }
}

template <typename Plain, typename Wide>
void split(const Wide & w, Plain * const * row) {
    for (int r = 0; r < WIDE; ++r) {
        for (int i = 0; i < 3; ++i) {
            memcpy(row[r]->scales + 4 * i, w.scales[i][r], 4);
        }
        exchange_mins(row[r]->scales);
        row[r]->data.data.d = w.d[r];
        row[r]->data.data.dmin = w.dmin[r];
        split_nibbles(w, r, *row[r]);
        split_fifth_bits(w, r, *row[r]);
    }
}

// The codes of a plain block: of 128 values, those of the second 32 share bytes with the fourth's, and so on.
void codes_of(const block_q6_K & b, uint8_t * codes) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t *ql = b.ql + 64 * half, *qh = b.qh + 32 * half;
        uint8_t * c = codes + 128 * half;
        for (int k = 0; k < 32; ++k) {
            c[k] = (uint8_t) ((ql[k] & 15) | (qh[k] & 3) << 4);
            c[k + 32] = (uint8_t) ((ql[k + 32] & 15) | (qh[k] >> 2 & 3) << 4);
            c[k + 64] = (uint8_t) (ql[k] >> 4 | (qh[k] >> 4 & 3) << 4);
            c[k + 96] = (uint8_t) (ql[k + 32] >> 4 | (qh[k] >> 6) << 4);
        }
    }
}

void set_codes(block_q6_K & b, const uint8_t * codes) {
    for (int half = 0; half < 2; ++half) {
        uint8_t *ql = b.ql + 64 * half, *qh = b.qh + 32 * half;
        const uint8_t * c = codes + 128 * half;
        for (int k = 0; k < 32; ++k) {
            ql[k] = (uint8_t) ((c[k] & 15) | (c[k + 64] & 15) << 4);
            ql[k + 32] = (uint8_t) ((c[k + 32] & 15) | (c[k + 96] & 15) << 4);
            qh[k] = (uint8_t) (c[k] >> 4 | c[k + 32] >> 4 << 2 | c[k + 64] >> 4 << 4 | c[k + 96] >> 4 << 6);
        }
    }
}

void join(const block_q6_K * const * row, block_q6_K_wide & w) {
    for (int r = 0; r < WIDE; ++r) {
        uint8_t codes[256];
        codes_of(*row[r], codes);
        w.d[r] = row[r]->d;
        for (int s = 0; s < 16; ++s) {
            w.scales[s / 2][r][s % 2] = row[r]->scales[s];
            for (int k = 0; k < 4; ++k) {
                const uint8_t *c = codes + 16 * s + k, at = (uint8_t) (4 * r + k);
                w.ql[s][0][at] = (uint8_t) ((c[0] & 15) | (c[4] & 15) << 4);
                w.ql[s][1][at] = (uint8_t) ((c[8] & 15) | (c[12] & 15) << 4);
                w.qh[s][at] = (uint8_t) (c[0] >> 4 | c[4] >> 4 << 2 | c[8] >> 4 << 4 | c[12] >> 4 << 6);
            }
        }
    }
}

void split(const block_q6_K_wide & w, block_q6_K * const * row) {
    for (int r = 0; r < WIDE; ++r) {
        uint8_t codes[256];
        row[r]->d = w.d[r];
        for (int s = 0; s < 16; ++s) {
            row[r]->scales[s] = w.scales[s / 2][r][s % 2];
            for (int k = 0; k < 16; ++k) {
                const int at = 4 * r + k % 4, v = k / 4;
                codes[16 * s + k] =
                    (uint8_t) ((w.ql[s][v / 2][at] >> (4 * (v % 2)) & 15) | (w.qh[s][at] >> (2 * v) & 3) << 4);
            }
        }
        set_codes(*row[r], codes);
    }
}

template <typename Plain, typename Wide, typename Plains, typename Wides, typename Turn>
void each_block(const ggml_tensor * t, Plains * plain, Wides * wide, Turn turn) {
    static_assert(sizeof(Wide) == WIDE * sizeof(Plain), "a group takes the bytes of its rows");
    const int64_t blocks = t->ne[0] / ggml_blck_size(t->type);
    for (int64_t g = 0; g < ggml_nrows(t) / WIDE; ++g) {
        for (int64_t b = 0; b < blocks; ++b) {
            Plains * row[WIDE];
            for (int r = 0; r < WIDE; ++r) {
                row[r] = plain + (g * WIDE + r) * blocks + b;
            }
            turn(row, wide[g * blocks + b]);
        }
    }
}

template <typename P, typename W>
struct blocks {
    using plain = P;
    using wide = W;
};

// Calls `use` with the blocks of a type that has the layout.
template <typename Use>
void with_blocks(ggml_type type, Use use) {
    switch (type) {
    case GGML_TYPE_Q8_0:
        return use(blocks<block_q8_0, block_q8_0_wide>());
    case GGML_TYPE_Q4_K:
        return use(blocks<block_q4_K, block_q4_K_wide>());
    case GGML_TYPE_Q5_K:
        return use(blocks<block_q5_K, block_q5_K_wide>());
    default:
        return use(blocks<block_q6_K, block_q6_K_wide>());
    }
}

}  // namespace

bool takes_wide(const ggml_tensor * w) {
    const kernel * k = find_kernel(w->type, layout::wide);
    return k != nullptr && w->ne[1] % WIDE == 0 && w->ne[0] % k->pack_block == 0 && ggml_is_contiguous(w);
}

void to_wide(const ggml_tensor * w, const void * plain, void * wide) {
    with_blocks(w->type, [&](auto type) {
        using Plain = typename decltype(type)::plain;
        using Wide = typename decltype(type)::wide;
        each_block<Plain, Wide>(w, (const Plain *) plain, (Wide *) wide,
                                [](const Plain * const * row, Wide & block) { join(row, block); });
    });
}

void from_wide(const ggml_tensor * w, const void * wide, void * plain) {
    with_blocks(w->type, [&](auto type) {
        using Plain = typename decltype(type)::plain;
        using Wide = typename decltype(type)::wide;
        each_block<Plain, Wide>(w, (Plain *) plain, (const Wide *) wide,
                                [](Plain * const * row, const Wide & block) { split(block, row); });
    });
}

}  // namespace eagle
