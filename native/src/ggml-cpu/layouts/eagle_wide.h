// Our own layout of weights: WIDE rows side by side, by 4 bytes in turn, so that every lane of a vector is one row.
//
// One broadcast of four activations serves all rows, sums never cross lanes, and block scales are vectors as they lie.
// Bits per weight are those of the plain type: a group of WIDE rows takes the bytes of WIDE plain rows.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ggml-backend.h"
#include "ggml.h"

namespace eagle {

constexpr int WIDE = 16;

// 32 values of each row. Codes have 128 added, value k of row r is qs[k / 4][4 * r + k % 4].
struct block_q8_0_wide {
    uint16_t d[WIDE];
    uint8_t qs[8][4 * WIDE];
};

// 256 values of each row. Sub-block s (32 values) is eight vectors of codes, two vectors to one in ql[s]. Scales and
// mins have 6 bits. Byte i of scales[0] holds scale i, of scales[1] min i, of scales[2] the low nibbles of scale and
// min 4 + i, whose high bits top the former two. Mins 1 and 2 are exchanged, and 5 and 6.
struct block_q4_K_wide {
    uint16_t d[WIDE];
    uint16_t dmin[WIDE];
    uint8_t scales[3][WIDE][4];
    uint8_t ql[8][4][4 * WIDE];
};

// The same with a fifth bit of each code: bit v of qh[s] is that of vector v.
struct block_q5_K_wide {
    uint16_t d[WIDE];
    uint16_t dmin[WIDE];
    uint8_t scales[3][WIDE][4];
    uint8_t qh[8][4 * WIDE];
    uint8_t ql[8][4][4 * WIDE];
};

// 256 values of each row. Sub-block s (16 values) is four vectors of codes: their low nibbles lie in ql[s], two vectors
// to one, their high bits in qh[s], all four.
struct block_q6_K_wide {
    uint16_t d[WIDE];
    int8_t scales[8][WIDE][2];  // of sub-blocks 2p and 2p + 1
    uint8_t qh[16][4 * WIDE];
    uint8_t ql[16][2][4 * WIDE];
};

// Whether weights of this type and shape can have the layout.
bool takes_wide(const struct ggml_tensor * w);

// Plain -> wide and back; ne[1] is a multiple of WIDE.
void to_wide(const struct ggml_tensor * w, const void * plain, void * wide);
void from_wide(const struct ggml_tensor * w, const void * wide, void * plain);

}  // namespace eagle
