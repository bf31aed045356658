// Assignment of rows to matrices in one launch of an exact matrix multiplication.

#pragma once

#include "ggml-cuda/common.cuh"

namespace eagle_cuda {

constexpr int MUL_MAT_THREADS = 128;
constexpr int MUL_MAT_WARPS = MUL_MAT_THREADS / WARP_SIZE;
constexpr int MAX_COLUMNS = 8;  // activation rows that share one pass over the weights

// Product of weights [k, m] with activation rows. A channel (blockIdx.y) is one matrix and its rows: an index of the
// outer dimensions, or a (slot, token) of an expert matmul. Strides of w are in bytes, of x in its elements (floats or
// blocks of q8_1), of dst in floats.
struct mul_mat_args {
    const char * w;
    const void * x;
    float * dst;
    const int32_t * ids;  // experts of each token, or null
    int64_t ids_token;
    int64_t k, m;
    int64_t w1, w2, w3;
    int64_t x1, x2, x3;
    int64_t d1, d2, d3;
    int n2;       // channels in the second dimension: heads, or slots
    int r2, r3;   // channels that share a matrix
    int x_slots;  // rows of a token in an expert matmul: one for all slots, or one each
    int n_channels;
    int n_columns;
    bool wide;  // pairs of floats are aligned (float weights)
};

struct mul_mat_place {
    const char * w;
    int64_t x;
    float * dst;
};

inline __device__ mul_mat_place locate(const mul_mat_args & a) {
    const int i2 = blockIdx.y % a.n2, i3 = blockIdx.y / a.n2;
    float * dst = a.dst + i2 * a.d2 + i3 * a.d3;
    if (a.ids != nullptr) {
        return {a.w + a.ids[i3 * a.ids_token + i2] * a.w2, i2 % a.x_slots * a.x2 + i3 * a.x3, dst};
    }
    return {a.w + i2 / a.r2 * a.w2 + i3 / a.r3 * a.w3, i2 * a.x2 + i3 * a.x3, dst};
}

// Sums over all threads in a fixed order: lanes, then warps. Threads 0 to N - 1 receive one sum each.
template <int N>
__device__ float block_sum(const float (&sum)[N]) {
    __shared__ float part[MUL_MAT_WARPS][N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float s = warp_reduce_sum(sum[i]);
        if (threadIdx.x % WARP_SIZE == 0) {
            part[threadIdx.x / WARP_SIZE][i] = s;
        }
    }
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x < N) {
#pragma unroll
        for (int w = 0; w < MUL_MAT_WARPS; w++) {
            total += part[w][threadIdx.x];
        }
    }
    return total;
}

using mul_mat_launch = void (*)(const mul_mat_args & a, cudaStream_t stream);

// Launches groups of columns of nearly equal size: launch[n - 1] computes n columns. X: element type of the
// activations.
template <typename X>
void launch_column_groups(mul_mat_args a, const mul_mat_launch (&launch)[MAX_COLUMNS], cudaStream_t stream) {
    const X * x = (const X *) a.x;
    float * dst = a.dst;
    const int groups = (a.n_columns + MAX_COLUMNS - 1) / MAX_COLUMNS;
    for (int g = 0; g < groups; g++) {
        const int first = a.n_columns * g / groups;
        const int count = a.n_columns * (g + 1) / groups - first;
        a.x = x + first * a.x1;
        a.dst = dst + first * a.d1;
        launch[count - 1](a, stream);
    }
    CUDA_CHECK(cudaGetLastError());
}

bool mul_mat_quantized(ggml_backend_cuda_context & ctx, const ggml_tensor * node, mul_mat_args args);
bool mul_mat_float(ggml_backend_cuda_context & ctx, const ggml_tensor * node, mul_mat_args args);

}  // namespace eagle_cuda
