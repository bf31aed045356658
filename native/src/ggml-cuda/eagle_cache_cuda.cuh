// Reads two adjacent elements of a cached key or value of any cache type.

#pragma once

#include "ggml-cuda/common.cuh"

namespace eagle_cuda {

struct cache_f32 {
    static __device__ float2 pair(const char * row, int i) { return *(const float2 *) (row + i * sizeof(float)); }
};

struct cache_f16 {
    static __device__ float2 pair(const char * row, int i) {
        return __half22float2(*(const half2 *) (row + i * sizeof(half)));
    }
};

struct cache_bf16 {
    static __device__ float2 pair(const char * row, int i) {
        const nv_bfloat162 x = *(const nv_bfloat162 *) (row + i * sizeof(nv_bfloat16));
        return make_float2(__bfloat162float(x.x), __bfloat162float(x.y));
    }
};

struct cache_q8_0 {
    static __device__ float2 pair(const char * row, int i) {
        const block_q8_0 & block = ((const block_q8_0 *) row)[i / QK8_0];
        const float d = __half2float(block.d);
        return make_float2(d * block.qs[i % QK8_0], d * block.qs[i % QK8_0 + 1]);
    }
};

// The first half of a block is in the low four bits, the second half in the high bits.
struct cache_q4_0 {
    static __device__ float2 pair(const char * row, int i) {
        const block_q4_0 & block = ((const block_q4_0 *) row)[i / QK4_0];
        const float d = __half2float(block.d);
        const int at = i % (QK4_0 / 2), shift = i % QK4_0 < QK4_0 / 2 ? 0 : 4;
        return make_float2(d * ((block.qs[at] >> shift & 15) - 8), d * ((block.qs[at + 1] >> shift & 15) - 8));
    }
};

}  // namespace eagle_cuda
