// Exact multiplication by quantized weights. The activations are quantized per 32 values, as in ggml's kernels for one
// row, and ggml's integer dot products do the arithmetic; the assignment of blocks to threads is fixed.

#include "eagle_mul_mat_cuda.cuh"
#include "ggml-cuda/quantize.cuh"
#include "ggml-cuda/vecdotq.cuh"

namespace eagle_cuda {

template <ggml_type T>
struct dot;

#define EAGLE_DOT(NAME, FUNCTION)                                                                 \
    template <>                                                                                   \
    struct dot<GGML_TYPE_##NAME> {                                                                \
        static constexpr int VDR = VDR_##NAME##_Q8_1_MMVQ;                                        \
        static __device__ float run(const void * w, const block_q8_1 * x, int block, int quant) { \
            return FUNCTION(w, x, block, quant);                                                  \
        }                                                                                         \
    };

EAGLE_DOT(Q8_0, vec_dot_q8_0_q8_1)
EAGLE_DOT(Q4_0, vec_dot_q4_0_q8_1)
EAGLE_DOT(Q4_K, vec_dot_q4_K_q8_1)
EAGLE_DOT(Q5_K, vec_dot_q5_K_q8_1)
EAGLE_DOT(Q6_K, vec_dot_q6_K_q8_1)
#undef EAGLE_DOT

// A block of threads computes R results for each of N rows. The order of a sum depends on neither number.
template <ggml_type T, int N, int R>
static __global__ void __launch_bounds__(MUL_MAT_THREADS) mul_mat_q(const mul_mat_args a) {
    constexpr int QK = ggml_cuda_type_traits<T>::qk;
    constexpr int SHARE = ggml_cuda_type_traits<T>::qi / dot<T>::VDR;  // threads per block of weights
    const mul_mat_place place = locate(a);
    const block_q8_1 * x = (const block_q8_1 *) a.x + place.x;
    const int64_t first = (int64_t) blockIdx.x * R;
    const int quant = dot<T>::VDR * (threadIdx.x % SHARE);
    const int n_blocks = (int) (a.k / QK);

    float sum[R * N] = {0.0f};
    for (int b = threadIdx.x / SHARE; b < n_blocks; b += MUL_MAT_THREADS / SHARE) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const char * row = place.w + min(first + r, a.m - 1) * a.w1;
#pragma unroll
            for (int n = 0; n < N; n++) {
                sum[r * N + n] += dot<T>::run(row, x + n * a.x1 + b * (QK / QK8_1), b, quant);
            }
        }
    }
    const float total = block_sum(sum);
    const int64_t r = first + threadIdx.x / N;
    if (threadIdx.x < R * N && r < a.m) {
        place.dst[threadIdx.x % N * a.d1 + r] = total;
    }
}

template <ggml_type T, int N>
static void launch(const mul_mat_args & a, cudaStream_t stream) {
    constexpr int R = N == 1 ? 1 : 2;  // with more rows there is more work between two loads of the activations
    const dim3 grid((unsigned) ((a.m + R - 1) / R), a.n_channels);
    mul_mat_q<T, N, R><<<grid, MUL_MAT_THREADS, 0, stream>>>(a);
}

template <ggml_type T>
static void run(const mul_mat_args & a, cudaStream_t stream) {
    static constexpr mul_mat_launch LAUNCH[MAX_COLUMNS] = {launch<T, 1>, launch<T, 2>, launch<T, 3>, launch<T, 4>,
                                                           launch<T, 5>, launch<T, 6>, launch<T, 7>, launch<T, 8>};
    launch_column_groups<block_q8_1>(a, LAUNCH, stream);
}

static mul_mat_launch runner(ggml_type type) {
    switch (type) {
    case GGML_TYPE_Q8_0:
        return run<GGML_TYPE_Q8_0>;
    case GGML_TYPE_Q4_0:
        return run<GGML_TYPE_Q4_0>;
    case GGML_TYPE_Q4_K:
        return run<GGML_TYPE_Q4_K>;
    case GGML_TYPE_Q5_K:
        return run<GGML_TYPE_Q5_K>;
    case GGML_TYPE_Q6_K:
        return run<GGML_TYPE_Q6_K>;
    default:
        return nullptr;
    }
}

bool mul_mat_quantized(ggml_backend_cuda_context & ctx, const ggml_tensor * node, mul_mat_args a) {
    const auto run = runner(node->src[0]->type);
    if (run == nullptr) {
        return false;
    }
    const ggml_tensor * x = node->src[1];
    const int64_t padded = GGML_PAD(x->ne[0], MATRIX_ROW_PADDING);
    const int64_t row = padded / QK8_1;
    ggml_cuda_pool_alloc<block_q8_1> packed(ctx.pool(), ggml_nrows(x) * row);
    quantize_row_q8_1_cuda((const float *) x->data, nullptr, packed.get(), node->src[0]->type, x->ne[0],
                           x->nb[1] / sizeof(float), x->nb[2] / sizeof(float), x->nb[3] / sizeof(float), padded,
                           x->ne[1], x->ne[2], x->ne[3], ctx.stream());
    const bool by_id = node->op == GGML_OP_MUL_MAT_ID;
    a.x = packed.get();
    a.x1 = by_id ? 0 : row;
    a.x2 = by_id ? row : row * x->ne[1];
    a.x3 = row * x->ne[1] * (by_id ? 1 : x->ne[2]);
    run(a, ctx.stream());
    return true;
}

}  // namespace eagle_cuda
