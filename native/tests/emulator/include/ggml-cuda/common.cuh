// Replacement for ggml-cuda's header of this name: CUDA's keywords and ggml-cuda's helpers that our kernels use.
#pragma once

#include <cassert>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulator.h"
#include "ggml-impl.h"

#define GGML_COMMON_DECL_CUDA
#include "ggml-common.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
#define CUDA_CHECK(call) (void) (call)

#define gridDim emulator::grid_dim
#define blockDim emulator::block_dim
#define blockIdx emulator::block_index
#define threadIdx emulator::thread_index

constexpr int WARP_SIZE = 32;  // ggml-cuda's value, even if the emulated warp is larger
constexpr int64_t MATRIX_ROW_PADDING = 512;

using cudaStream_t = int;

inline int cudaGetLastError() {
    return 0;
}

inline void __syncthreads() {
    emulator::synchronize_block();
}

inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}

template <typename A, typename B>
auto min(A a, B b) -> decltype(a + b) {
    return a < b ? a : b;
}

// --- ggml-cuda -------------------------------------------------------------------------------------------------------

struct ggml_cuda_pool {};

struct ggml_backend_cuda_context {
    ggml_cuda_pool memory;
    ggml_cuda_pool & pool() { return memory; }
    cudaStream_t stream() { return 0; }
};

// Fills new memory with garbage.
template <typename T>
struct ggml_cuda_pool_alloc {
    std::vector<char> bytes;
    ggml_cuda_pool_alloc(ggml_cuda_pool &, size_t n) : bytes(n * sizeof(T), '\xff') {}
    T * get() { return (T *) bytes.data(); }
};

struct ggml_cuda_device_info {
    struct {
        int warp_size;
    } devices[1];
};

inline const ggml_cuda_device_info & ggml_cuda_info() {
    static const ggml_cuda_device_info info = {{{emulator::WARP_SIZE}}};
    return info;
}

inline int ggml_cuda_get_device() {
    return 0;
}

constexpr int ggml_cuda_get_physical_warp_size() {
    return emulator::WARP_SIZE;
}

template <int width = WARP_SIZE>
float warp_reduce_sum(float x) {
    for (int mask = width / 2; mask > 0; mask /= 2) {
        x += emulator::shuffle_xor(x, mask);
    }
    return x;
}

template <int width = WARP_SIZE>
float warp_reduce_max(float x) {
    for (int mask = width / 2; mask > 0; mask /= 2) {
        x = fmaxf(x, emulator::shuffle_xor(x, mask));
    }
    return x;
}

enum class block_reduce_method { MAX, SUM };

// For a one-dimensional block of up to WARP_SIZE whole warps.
template <block_reduce_method method, int block_size>
float block_reduce(float x, float * shared) {
    constexpr bool sum = method == block_reduce_method::SUM;
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    x = sum ? warp_reduce_sum(x) : warp_reduce_max(x);
    if (lane == 0) {
        shared[warp] = x;
    }
    __syncthreads();
    x = lane < block_size / WARP_SIZE ? shared[lane] : sum ? 0.0f : -INFINITY;
    return sum ? warp_reduce_sum(x) : warp_reduce_max(x);
}

inline float get_alibi_slope(float max_bias, uint32_t head, uint32_t n_head_log2, float m0, float m1) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    return head < n_head_log2 ? powf(m0, head + 1) : powf(m1, 2 * (head - n_head_log2) + 1);
}

// --- four integers at once
// -----------------------------------------------------------------------------------------------

inline int ggml_cuda_dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) {
        c += (int8_t) (a >> 8 * i) * (int8_t) (b >> 8 * i);
    }
    return c;
}

inline int __vsubss4(int a, int b) {
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        const int d = (int8_t) (a >> 8 * i) - (int8_t) (b >> 8 * i);
        out |= (uint32_t) (uint8_t) (d < -128 ? -128 : d > 127 ? 127 : d) << 8 * i;
    }
    return (int) out;
}

inline int __vsub4(int a, int b) {
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        out |= (uint32_t) (uint8_t) ((a >> 8 * i) - (b >> 8 * i)) << 8 * i;
    }
    return (int) out;
}

template <ggml_type type>
struct ggml_cuda_type_traits;

#define EMULATOR_TRAITS(NAME, QK, QI)                \
    template <>                                      \
    struct ggml_cuda_type_traits<GGML_TYPE_##NAME> { \
        static constexpr int qk = QK, qi = QI;       \
    };

EMULATOR_TRAITS(Q8_0, QK8_0, QI8_0)
EMULATOR_TRAITS(Q4_0, QK4_0, QI4_0)
EMULATOR_TRAITS(Q4_K, QK_K, QI4_K)
EMULATOR_TRAITS(Q5_K, QK_K, QI5_K)
EMULATOR_TRAITS(Q6_K, QK_K, QI6_K)
#undef EMULATOR_TRAITS
