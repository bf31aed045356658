// Our repacked layout of weights: WIDE rows alternate every 4 bytes, so that every lane of a vector is one row.
//
// One broadcast of four activations serves all rows, sums never cross lanes, and block scales can be loaded as vectors.
// The size does not change: a group of WIDE rows has the bytes of WIDE plain rows.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ggml-backend.h"
#include "ggml.h"

namespace eagle {

constexpr int WIDE = 16;

// Codes of N vectors. A vector has four values of each row: value k of row r in byte 4 * r + k. The LOW lower bits of 8
// / LOW vectors share the bytes of one stored vector, the first one in the lowest bits; the HIGH upper bits are stored
// in the same way.
template <int N, int LOW, int HIGH = 0>
struct wide_codes {
    static constexpr int VECTORS = N, LOW_BITS = LOW, HIGH_BITS = HIGH;
    uint8_t low[N * LOW / 8][4 * WIDE];
    uint8_t high[N * HIGH / 8][4 * WIDE];
};

template <int N, int LOW>
struct wide_codes<N, LOW, 0> {
    static constexpr int VECTORS = N, LOW_BITS = LOW, HIGH_BITS = 0;
    uint8_t low[N * LOW / 8][4 * WIDE];
};

// Blocks of 32 values of each row.

struct block_q8_0_wide {
    uint16_t d[WIDE];
    wide_codes<8, 8> codes;  // with an offset of 128
};

// Q4_0 and IQ4_NL
struct block_q4_0_wide {
    uint16_t d[WIDE];
    wide_codes<8, 4> codes;
};

struct block_q4_1_wide {
    uint16_t d[WIDE];
    uint16_t m[WIDE];
    wide_codes<8, 4> codes;
};

struct block_q5_0_wide {
    uint16_t d[WIDE];
    wide_codes<8, 4, 1> codes;
};

struct block_q5_1_wide {
    uint16_t d[WIDE];
    uint16_t m[WIDE];
    wide_codes<8, 4, 1> codes;
};

struct block_mxfp4_wide {
    uint8_t e[WIDE];
    wide_codes<8, 4> codes;
};

// Blocks of 256 values of each row. The scales of a row are packed as in the plain type; rows alternate every 4 bytes.

struct block_q2_K_wide {
    uint16_t d[WIDE];
    uint16_t dmin[WIDE];
    uint8_t scales[4][WIDE][4];
    wide_codes<64, 2> codes;
};

struct block_q3_K_wide {
    uint16_t d[WIDE];
    uint8_t scales[3][WIDE][4];
    wide_codes<64, 2, 1> codes;
};

struct block_q4_K_wide {
    uint16_t d[WIDE];
    uint16_t dmin[WIDE];
    uint8_t scales[3][WIDE][4];
    wide_codes<64, 4> codes;
};

struct block_q5_K_wide {
    uint16_t d[WIDE];
    uint16_t dmin[WIDE];
    uint8_t scales[3][WIDE][4];
    wide_codes<64, 4, 1> codes;
};

struct block_q6_K_wide {
    uint16_t d[WIDE];
    uint8_t scales[4][WIDE][4];
    wide_codes<64, 4, 2> codes;
};

struct block_iq4_xs_wide {
    uint16_t d[WIDE];
    uint16_t scales_h[WIDE];
    uint8_t scales_l[WIDE][4];
    wide_codes<64, 4> codes;
};

// Convert from the plain layout and back; ne[1] must be a multiple of WIDE.
void to_wide(const struct ggml_tensor * w, const void * plain, void * wide);
void from_wide(const struct ggml_tensor * w, const void * wide, void * plain);

}  // namespace eagle

// Returns the buffer type of this layout.
extern "C" struct ggml_backend_buffer_type * eagle_wide_buffer_type(void);
