// Exact multiplication by float weights, and the two products of attention without flash attention. Threads take pairs
// of columns at a fixed stride and sum in float32; the zeros of masked cache cells add nothing.

#include "eagle_mul_mat_cuda.cuh"

namespace eagle_cuda {

static __device__ float2 both(const float * p) {
    return *(const float2 *) p;
}

static __device__ float2 both(const half * p) {
    return __half22float2(*(const half2 *) p);
}

static __device__ float2 both(const nv_bfloat16 * p) {
    const nv_bfloat162 pair = *(const nv_bfloat162 *) p;
    return make_float2(__bfloat162float(pair.x), __bfloat162float(pair.y));
}

static __device__ float one(float x) {
    return x;
}

static __device__ float one(half x) {
    return __half2float(x);
}

static __device__ float one(nv_bfloat16 x) {
    return __bfloat162float(x);
}

// Returns elements i and i + 1 of a row of k, 0 past its end.
template <typename T>
static __device__ float2 pair(const T * row, int64_t i, int64_t k, bool wide) {
    if (wide) {
        return both(row + i);
    }
    return make_float2(one(row[i]), i + 1 < k ? one(row[i + 1]) : 0.0f);
}

template <typename T, int N>
static __global__ void __launch_bounds__(MUL_MAT_THREADS) mul_mat_f(const mul_mat_args a) {
    const mul_mat_place place = locate(a);
    const T * w = (const T *) (place.w + (int64_t) blockIdx.x * a.w1);
    const float * x = (const float *) a.x + place.x;

    float sum[N] = {0.0f};
    for (int64_t i = 2 * threadIdx.x; i < a.k; i += 2 * MUL_MAT_THREADS) {
        const float2 left = pair(w, i, a.k, a.wide);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float2 right = pair(x + n * a.x1, i, a.k, a.wide);
            sum[n] = fmaf(left.x, right.x, sum[n]);
            sum[n] = fmaf(left.y, right.y, sum[n]);
        }
    }
    const float total = block_sum(sum);
    if (threadIdx.x < N) {
        place.dst[threadIdx.x * a.d1 + blockIdx.x] = total;
    }
}

template <typename T, int N>
static void launch(const mul_mat_args & a, cudaStream_t stream) {
    mul_mat_f<T, N><<<dim3((unsigned) a.m, a.n_channels), MUL_MAT_THREADS, 0, stream>>>(a);
}

template <typename T>
static void run(const mul_mat_args & a, cudaStream_t stream) {
    static constexpr mul_mat_launch LAUNCH[MAX_COLUMNS] = {launch<T, 1>, launch<T, 2>, launch<T, 3>, launch<T, 4>,
                                                           launch<T, 5>, launch<T, 6>, launch<T, 7>, launch<T, 8>};
    launch_column_groups<float>(a, LAUNCH, stream);
}

static bool aligned(const ggml_tensor * t) {
    const size_t pair = 2 * ggml_type_size(t->type);
    return t->ne[0] % 2 == 0 && (uintptr_t) t->data % pair == 0 && t->nb[1] % pair == 0 && t->nb[2] % pair == 0 &&
           t->nb[3] % pair == 0;
}

bool mul_mat_float(ggml_backend_cuda_context & ctx, const ggml_tensor * node, mul_mat_args a) {
    a.wide = aligned(node->src[0]) && aligned(node->src[1]);
    switch (node->src[0]->type) {
    case GGML_TYPE_F32:
        run<float>(a, ctx.stream());
        return true;
    case GGML_TYPE_F16:
        run<half>(a, ctx.stream());
        return true;
    case GGML_TYPE_BF16:
        run<nv_bfloat16>(a, ctx.stream());
        return true;
    default:
        return false;
    }
}

}  // namespace eagle_cuda
