// Exact flash attention: the cache is split at fixed positions, a block of threads computes one piece for one head of
// one row, and the pieces are combined in order. Masked and padding cells have weight 0 and change no bit.

#include <algorithm>

#include "eagle_cache_cuda.cuh"
#include "eagle_exact_kernels.cuh"

namespace eagle_cuda {

namespace {

constexpr int PIECE = 256;  // cells; llama.cpp pads the cache to a multiple of it
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / WARP_SIZE;
constexpr int LANES = 8;  // threads per dot product of a cell
constexpr int64_t WORK_BYTES = 64 << 20;

struct attn_args {
    const char * q;
    const char * k;
    const char * v;
    const half * mask;
    const float * sinks;
    float * parts;  // [piece, D] for each row and head
    float2 * meta;  // maximum and sum of weights of each piece
    float * out;
    int n_kv, n_heads, n_rows, n_pieces;
    int row0;                                    // first row of this launch
    int share;                                   // query heads per key head
    int64_t q1, q2, q3, k1, k2, k3, v1, v2, v3;  // bytes
    int64_t mask1, mask3;                        // halves
    int mask_n3;
    float scale, softcap, max_bias, m0, m1;
    uint32_t n_head_log2;
};

__device__ float block_max(float x, float * shared) {
    x = warp_reduce_max(x);
    if (threadIdx.x % WARP_SIZE == 0) {
        shared[threadIdx.x / WARP_SIZE] = x;
    }
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < WARPS; w++) {
        x = fmaxf(x, shared[w]);
    }
    __syncthreads();
    return x;
}

__device__ float block_sum(float x, float * shared) {
    x = warp_reduce_sum(x);
    if (threadIdx.x % WARP_SIZE == 0) {
        shared[threadIdx.x / WARP_SIZE] = x;
    }
    __syncthreads();
    x = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        x += shared[w];
    }
    return x;
}

// Computes the scores of a piece's cells: eight lanes per cell, sixteen cells at a time.
template <typename C, int D>
__device__ void piece_scores(const attn_args & a, int head, int row, int seq, int first, float * scores) {
    const int lane = threadIdx.x % LANES;
    const float * q = (const float *) (a.q + row * a.q1 + head * a.q2 + seq * a.q3);
    const char * k = a.k + head / a.share * a.k2 + seq * a.k3;
    const half * mask = a.mask ? a.mask + row * a.mask1 + seq % a.mask_n3 * a.mask3 : nullptr;
    const float slope = get_alibi_slope(a.max_bias, head, a.n_head_log2, a.m0, a.m1);
    float query[D / LANES];
#pragma unroll
    for (int i = 0; i < D / LANES; i += 2) {
        query[i] = q[i * LANES + 2 * lane];
        query[i + 1] = q[i * LANES + 2 * lane + 1];
    }
    for (int c = threadIdx.x / LANES; c < PIECE; c += THREADS / LANES) {
        const int cell = first + c;
        const char * key = k + min(cell, a.n_kv - 1) * a.k1;
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < D / LANES; i += 2) {
            const float2 pair = C::pair(key, i * LANES + 2 * lane);
            s = fmaf(query[i], pair.x, s);
            s = fmaf(query[i + 1], pair.y, s);
        }
        s = warp_reduce_sum<LANES>(s) * a.scale;
        if (a.softcap != 0.0f) {
            s = a.softcap * tanhf(s);
        }
        if (lane == 0) {
            const float bias = mask != nullptr && cell < a.n_kv ? __half2float(mask[cell]) : 0.0f;
            scores[c] = cell < a.n_kv ? fmaf(slope, bias, s) : -INFINITY;
        }
    }
}

// Grid: row, head, piece of a sequence. Rows are the fastest dimension, because they read the same cells at the same
// time.
template <typename C, int D>
__global__ void __launch_bounds__(THREADS) attend_piece(const attn_args a) {
    constexpr int PAIRS = D / 2;
    constexpr int SETS = THREADS / PAIRS;  // each set sums every SETS-th cell
    const int row = a.row0 + blockIdx.x, head = blockIdx.y;
    const int piece = blockIdx.z % a.n_pieces, seq = blockIdx.z / a.n_pieces;
    const int first = piece * PIECE;
    const int64_t slot = ((int64_t) (seq * gridDim.x + blockIdx.x) * a.n_heads + head) * a.n_pieces + piece;
    __shared__ float weights[PIECE];
    __shared__ float shared[WARPS];
    __shared__ float sets[SETS][D];

    piece_scores<C, D>(a, head, row, seq, first, weights);
    __syncthreads();
    float top = -INFINITY;
    for (int c = threadIdx.x; c < PIECE; c += THREADS) {
        top = fmaxf(top, weights[c]);
    }
    top = block_max(top, shared);
    if (top == -INFINITY) {
        if (threadIdx.x == 0) {
            a.meta[slot] = make_float2(-INFINITY, 0.0f);
        }
        return;
    }
    float sum = 0.0f;
    for (int c = threadIdx.x; c < PIECE; c += THREADS) {
        weights[c] = expf(weights[c] - top);
        sum += weights[c];
    }
    sum = block_sum(sum, shared);

    const int set = threadIdx.x / PAIRS, column = 2 * (threadIdx.x % PAIRS);
    if (set < SETS) {
        const char * v = a.v + head / a.share * a.v2 + seq * a.v3 + first * a.v1;
        const int n = min(PIECE, a.n_kv - first);
        float2 acc = make_float2(0.0f, 0.0f);
        for (int c = set; c < n; c += SETS) {
            const float2 value = C::pair(v + c * a.v1, column);
            acc.x = fmaf(weights[c], value.x, acc.x);
            acc.y = fmaf(weights[c], value.y, acc.y);
        }
        sets[set][column] = acc.x;
        sets[set][column + 1] = acc.y;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < D; d += THREADS) {
        float x = sets[0][d];
        for (int s = 1; s < SETS; s++) {
            x += sets[s][d];
        }
        a.parts[slot * D + d] = x;
    }
    if (threadIdx.x == 0) {
        a.meta[slot] = make_float2(top, sum);
    }
}

// Grid: row, head, sequence. Each thread computes a column.
template <int D>
__global__ void __launch_bounds__(D) join_pieces(const attn_args a) {
    const int row = a.row0 + blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    const int64_t slot = ((int64_t) (seq * gridDim.x + blockIdx.x) * a.n_heads + head) * a.n_pieces;
    float top = a.sinks != nullptr ? a.sinks[head] : -INFINITY;
    for (int p = 0; p < a.n_pieces; p++) {
        top = fmaxf(top, a.meta[slot + p].x);
    }
    float above = 0.0f, below = a.sinks != nullptr ? expf(a.sinks[head] - top) : 0.0f;
    for (int p = 0; p < a.n_pieces; p++) {
        const float2 m = a.meta[slot + p];
        if (m.x == -INFINITY) {
            continue;  // the piece was not written
        }
        const float scale = expf(m.x - top);
        above = fmaf(scale, a.parts[(slot + p) * D + threadIdx.x], above);
        below = fmaf(scale, m.y, below);
    }
    a.out[((int64_t) (seq * a.n_rows + row) * a.n_heads + head) * D + threadIdx.x] =
        below == 0.0f ? 0.0f : above / below;
}

// Returns the number of rows per launch that the workspace allows; very long caches allow fewer.
template <typename C, int D>
void run(ggml_backend_cuda_context & ctx, attn_args a, int n_seqs) {
    const int64_t slots = (int64_t) n_seqs * a.n_heads * a.n_pieces;
    const int rows = (int) std::clamp<int64_t>(WORK_BYTES / (slots * D * sizeof(float)), 1, a.n_rows);
    ggml_cuda_pool_alloc<float> parts(ctx.pool(), rows * slots * D);
    ggml_cuda_pool_alloc<float2> meta(ctx.pool(), rows * slots);
    a.parts = parts.get();
    a.meta = meta.get();
    for (a.row0 = 0; a.row0 < a.n_rows; a.row0 += rows) {
        const int n = std::min(rows, a.n_rows - a.row0);
        attend_piece<C, D><<<dim3(n, a.n_heads, a.n_pieces * n_seqs), THREADS, 0, ctx.stream()>>>(a);
        join_pieces<D><<<dim3(n, a.n_heads, n_seqs), D, 0, ctx.stream()>>>(a);
    }
    CUDA_CHECK(cudaGetLastError());
}

using runner = void (*)(ggml_backend_cuda_context &, attn_args, int);

template <typename C>
runner runner_for(int64_t head_size) {
    switch (head_size) {
    case 64:
        return run<C, 64>;
    case 80:
        return run<C, 80>;
    case 96:
        return run<C, 96>;
    case 112:
        return run<C, 112>;
    case 128:
        return run<C, 128>;
    case 256:
        return run<C, 256>;
    default:
        return nullptr;
    }
}

runner runner_for(const ggml_tensor * k, const ggml_tensor * v) {
    if (k->type != v->type || k->ne[0] != v->ne[0]) {
        return nullptr;
    }
    switch (k->type) {
    case GGML_TYPE_F32:
        return runner_for<cache_f32>(k->ne[0]);
    case GGML_TYPE_F16:
        return runner_for<cache_f16>(k->ne[0]);
    case GGML_TYPE_BF16:
        return runner_for<cache_bf16>(k->ne[0]);
    case GGML_TYPE_Q8_0:
        return runner_for<cache_q8_0>(k->ne[0]);
    case GGML_TYPE_Q4_0:
        return runner_for<cache_q4_0>(k->ne[0]);
    default:
        return nullptr;
    }
}

// Checks the alignment for reading pairs of elements: 8 bytes for F32, 4 for F16 and BF16, 2 for the scale of a
// quantized block.
bool aligned(const ggml_tensor * t) {
    const size_t pair = ggml_is_quantized(t->type) ? 2 : 2 * ggml_type_size(t->type);
    return t->nb[0] == ggml_type_size(t->type) && (uintptr_t) t->data % pair == 0 && t->nb[1] % pair == 0 &&
           t->nb[2] % pair == 0 && t->nb[3] % pair == 0;
}

attn_args arguments(const ggml_tensor * node) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * v = node->src[2];
    const ggml_tensor * mask = node->src[3];
    attn_args a = {};
    a.q = (const char *) q->data, a.k = (const char *) k->data, a.v = (const char *) v->data;
    a.mask = mask ? (const half *) mask->data : nullptr;
    a.sinks = node->src[4] ? (const float *) node->src[4]->data : nullptr;
    a.out = (float *) node->data;
    a.n_kv = (int) k->ne[1], a.n_heads = (int) q->ne[2], a.n_rows = (int) q->ne[1];
    a.n_pieces = (a.n_kv + PIECE - 1) / PIECE;
    a.share = (int) (q->ne[2] / k->ne[2]);
    a.q1 = q->nb[1], a.q2 = q->nb[2], a.q3 = q->nb[3];
    a.k1 = k->nb[1], a.k2 = k->nb[2], a.k3 = k->nb[3];
    a.v1 = v->nb[1], a.v2 = v->nb[2], a.v3 = v->nb[3];
    a.mask1 = mask ? mask->nb[1] / sizeof(half) : 0;
    a.mask3 = mask ? mask->nb[3] / sizeof(half) : 0;
    a.mask_n3 = mask ? (int) mask->ne[3] : 1;
    a.scale = ggml_get_op_params_f32(node, 0);
    a.max_bias = ggml_get_op_params_f32(node, 1);
    a.softcap = ggml_get_op_params_f32(node, 2);
    if (a.softcap != 0.0f) {
        a.scale /= a.softcap;
    }
    a.n_head_log2 = 1u << (uint32_t) floorf(log2f((float) a.n_heads));
    a.m0 = powf(2.0f, -a.max_bias / a.n_head_log2);
    a.m1 = powf(2.0f, -a.max_bias / 2.0f / a.n_head_log2);
    return a;
}

}  // namespace

bool flash_attn(ggml_backend_cuda_context & ctx, ggml_tensor * node) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * v = node->src[2];
    const ggml_tensor * mask = node->src[3];
    const runner run = runner_for(k, v);
    if (q->ne[1] > MAX_ROWS || run == nullptr || q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || !aligned(k) ||
        !aligned(v) || k->ne[2] != v->ne[2] || k->ne[3] != q->ne[3] || v->ne[3] != q->ne[3] ||
        (mask != nullptr && (mask->type != GGML_TYPE_F16 || mask->ne[2] != 1))) {
        return false;
    }
    run(ctx, arguments(node), (int) q->ne[3]);
    return true;
}

}  // namespace eagle_cuda
