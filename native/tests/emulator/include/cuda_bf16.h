#pragma once

#include "cuda_fp16.h"

struct nv_bfloat16 {
    ggml_bf16_t bits;
};

struct nv_bfloat162 {
    nv_bfloat16 x, y;
};

inline float __bfloat162float(nv_bfloat16 x) {
    return ggml_bf16_to_fp32(x.bits);
}
