// Exact softmax over a padded cache. ggml's block of threads grows with the padding, which changes the order of the
// sum. Ours has a fixed size, and masked cells add zeros.

#include "eagle_exact_kernels.cuh"

namespace eagle_cuda {

namespace {

constexpr int THREADS = 256;

struct soft_max_args {
    const float * x;
    const char * mask;
    const float * sinks;
    float * out;
    int64_t n;                    // columns
    int64_t mask1, mask2, mask3;  // bytes
    int mask_n2, mask_n3;
    float scale, max_bias, m0, m1;
    uint32_t n_head_log2;
};

__device__ float mask_value(const float * mask, int64_t i) {
    return mask[i];
}

__device__ float mask_value(const half * mask, int64_t i) {
    return __half2float(mask[i]);
}

// Grid: row, head, sequence.
template <typename M>
__global__ void __launch_bounds__(THREADS) masked_soft_max(const soft_max_args a) {
    __shared__ float shared[WARP_SIZE];
    const int64_t row = blockIdx.x + gridDim.x * (blockIdx.y + (int64_t) gridDim.y * blockIdx.z);
    const float * x = a.x + row * a.n;
    float * out = a.out + row * a.n;
    const M * mask = (const M *) (a.mask + blockIdx.x * a.mask1 + blockIdx.y % a.mask_n2 * a.mask2 +
                                  blockIdx.z % a.mask_n3 * a.mask3);
    const float slope = get_alibi_slope(a.max_bias, blockIdx.y, a.n_head_log2, a.m0, a.m1);

    float top = a.sinks != nullptr ? a.sinks[blockIdx.y] : -INFINITY;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
        out[i] = fmaf(slope, mask_value(mask, i), x[i] * a.scale);
        top = fmaxf(top, out[i]);
    }
    top = block_reduce<block_reduce_method::MAX, THREADS>(top, shared);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
        out[i] = expf(out[i] - top);
        sum += out[i];
    }
    __syncthreads();
    sum = block_reduce<block_reduce_method::SUM, THREADS>(sum, shared);
    if (a.sinks != nullptr) {
        sum += expf(a.sinks[blockIdx.y] - top);
    }
    const float factor = 1.0f / sum;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
        out[i] *= factor;
    }
}

}  // namespace

bool soft_max(ggml_backend_cuda_context & ctx, ggml_tensor * node) {
    const ggml_tensor * x = node->src[0];
    const ggml_tensor * mask = node->src[1];
    if (mask == nullptr || x->ne[1] > MAX_ROWS || x->type != GGML_TYPE_F32 || !ggml_is_contiguous(x) ||
        !ggml_is_contiguous(node)) {
        return false;
    }
    soft_max_args a = {};
    a.x = (const float *) x->data;
    a.mask = (const char *) mask->data;
    a.sinks = node->src[2] ? (const float *) node->src[2]->data : nullptr;
    a.out = (float *) node->data;
    a.n = x->ne[0];
    a.mask1 = mask->nb[1], a.mask2 = mask->nb[2], a.mask3 = mask->nb[3];
    a.mask_n2 = (int) mask->ne[2], a.mask_n3 = (int) mask->ne[3];
    a.scale = ggml_get_op_params_f32(node, 0);
    a.max_bias = ggml_get_op_params_f32(node, 1);
    a.n_head_log2 = 1u << (uint32_t) floorf(log2f((float) x->ne[2]));
    a.m0 = powf(2.0f, -a.max_bias / a.n_head_log2);
    a.m1 = powf(2.0f, -a.max_bias / 2.0f / a.n_head_log2);
    const dim3 grid((unsigned) x->ne[1], (unsigned) x->ne[2], (unsigned) x->ne[3]);
    if (mask->type == GGML_TYPE_F16) {
        masked_soft_max<half><<<grid, THREADS, 0, ctx.stream()>>>(a);
    } else {
        masked_soft_max<float><<<grid, THREADS, 0, ctx.stream()>>>(a);
    }
    CUDA_CHECK(cudaGetLastError());
    return true;
}

}  // namespace eagle_cuda
