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

// The codes of a plain block: of 64 values, the first 32 are low nibbles, the others the high nibbles of the same
// bytes.
void codes_of(const block_q5_K & b, uint8_t * codes) {
    for (int k = 0; k < 256; ++k) {
        const int low = b.qs[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
        codes[k] = (uint8_t) (low | (b.qh[k % 32] >> (k / 32) & 1) << 4);
    }
}

void set_codes(block_q5_K & b, const uint8_t * codes) {
    memset(b.qs, 0, sizeof(b.qs));
    memset(b.qh, 0, sizeof(b.qh));
    for (int k = 0; k < 256; ++k) {
        b.qs[k / 64 * 32 + k % 32] |= (uint8_t) ((codes[k] & 15) << (k / 32 % 2 * 4));
        b.qh[k % 32] |= (uint8_t) (codes[k] >> 4 << (k / 32));
    }
}

// Bytes 0..3, 4..7 and 8..11 of a plain block's scales are scales[0], [1] and [2], but for the order of the mins.
void exchange_mins(uint8_t * scales) {
    constexpr uint8_t HIGH = 0xf0;
    std::swap(scales[5], scales[6]);  // mins 1 and 2, and the high bits of mins 5 and 6
    const uint8_t min5 = scales[9] & HIGH, min6 = scales[10] & HIGH;
    scales[9] = (uint8_t) ((scales[9] & 15) | min6);
    scales[10] = (uint8_t) ((scales[10] & 15) | min5);
}

void join(const block_q5_K * const * row, block_q5_K_wide & w) {
    memset(&w, 0, sizeof(w));
    for (int r = 0; r < WIDE; ++r) {
        uint8_t codes[256], scales[12];
        codes_of(*row[r], codes);
        memcpy(scales, row[r]->scales, sizeof(scales));
        exchange_mins(scales);
        w.d[r] = row[r]->data.data.d;
        w.dmin[r] = row[r]->data.data.dmin;
        for (int i = 0; i < 3; ++i) {
            memcpy(w.scales[i][r], scales + 4 * i, 4);
        }
        for (int k = 0; k < 256; ++k) {
            const int s = k / 32, v = k % 32 / 4, at = 4 * r + k % 4;
            w.ql[s][v / 2][at] |= (uint8_t) ((codes[k] & 15) << (v % 2 * 4));
            w.qh[s][at] |= (uint8_t) (codes[k] >> 4 << v);
        }
    }
}

void split(const block_q5_K_wide & w, block_q5_K * const * row) {
    for (int r = 0; r < WIDE; ++r) {
        uint8_t codes[256];
        row[r]->data.data.d = w.d[r];
        row[r]->data.data.dmin = w.dmin[r];
        for (int i = 0; i < 3; ++i) {
            memcpy(row[r]->scales + 4 * i, w.scales[i][r], 4);
        }
        exchange_mins(row[r]->scales);
        for (int k = 0; k < 256; ++k) {
            const int s = k / 32, v = k % 32 / 4, at = 4 * r + k % 4;
            codes[k] = (uint8_t) ((w.ql[s][v / 2][at] >> (v % 2 * 4) & 15) | (w.qh[s][at] >> v & 1) << 4);
        }
        set_codes(*row[r], codes);
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

template <typename Plain, typename Wide>
void to_wide_as(const ggml_tensor * t, const void * plain, void * wide) {
    each_block<Plain, Wide>(t, (const Plain *) plain, (Wide *) wide,
                            [](const Plain * const * row, Wide & w) { join(row, w); });
}

template <typename Plain, typename Wide>
void from_wide_as(const ggml_tensor * t, const void * wide, void * plain) {
    each_block<Plain, Wide>(t, (Plain *) plain, (const Wide *) wide,
                            [](Plain * const * row, const Wide & w) { split(w, row); });
}

}  // namespace

bool takes_wide(const ggml_tensor * w) {
    const kernel * k = find_kernel(w->type, layout::wide);
    return k != nullptr && w->ne[1] % WIDE == 0 && w->ne[0] % k->pack_block == 0 && ggml_is_contiguous(w);
}

void to_wide(const ggml_tensor * w, const void * plain, void * wide) {
    switch (w->type) {
    case GGML_TYPE_Q8_0:
        return to_wide_as<block_q8_0, block_q8_0_wide>(w, plain, wide);
    case GGML_TYPE_Q5_K:
        return to_wide_as<block_q5_K, block_q5_K_wide>(w, plain, wide);
    default:
        return to_wide_as<block_q6_K, block_q6_K_wide>(w, plain, wide);
    }
}

void from_wide(const ggml_tensor * w, const void * wide, void * plain) {
    switch (w->type) {
    case GGML_TYPE_Q8_0:
        return from_wide_as<block_q8_0, block_q8_0_wide>(w, wide, plain);
    case GGML_TYPE_Q5_K:
        return from_wide_as<block_q5_K, block_q5_K_wide>(w, wide, plain);
    default:
        return from_wide_as<block_q6_K, block_q6_K_wide>(w, wide, plain);
    }
}

}  // namespace eagle
