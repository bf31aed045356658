// In-place Gated DeltaNet on CUDA: a warp holds one state row in registers, replays the kept records, computes the new
// tokens, and writes the row once. Replay counts are read on the device, so all rounds have the same launches and can
// be captured in a CUDA graph. A token must leave the same bits when it is new and when it is replayed, so this file is
// compiled without contraction, and multiply-adds are written as fmaf.

#include "eagle_gdn.h"
#include "eagle_gdn_cuda.cuh"

namespace {

constexpr int WARPS_PER_BLOCK = 4;
constexpr int MAX_WINDOW = 32;  // window of the convolution; models have 3

// Operands of a Gated DeltaNet with replay; strides in floats.
struct gdn_args {
    const float * q;
    const float * k;
    const float * v;
    const float * g;
    const float * beta;
    const float * state;
    float * state_out;         // equal to the input state if it is updated in place
    float * records;           // of sequence 0, slot 0
    const int32_t * n_replay;  // null: no replay
    float * out;
    int n_k_heads, n_v_heads, n_tokens, n_tail;
    int64_t q1, q2, q3, k1, k2, k3, v1, v2, v3;
    int64_t row, slot;  // floats between sequences and between slots of the records
};

template <int S>
struct gdn_row {
    static constexpr int LANES = ggml_cuda_get_physical_warp_size() < S ? ggml_cuda_get_physical_warp_size() : S;
    static constexpr int N = S / LANES;

    float s[N];

    __device__ void load(const float * row, int lane) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] = row[i * LANES + lane];
        }
    }

    __device__ void store(float * row, int lane) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            row[i * LANES + lane] = s[i];
        }
    }

    // s = decay * s + k * delta, delta = (v - decay * <s, k>) * beta
    __device__ void advance(const float * k, float v, float decay, float beta, int lane) {
        float keys[N];
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            keys[i] = k[i * LANES + lane];
            dot = fmaf(s[i], keys[i], dot);
        }
        dot = warp_reduce_sum<LANES>(dot);
        const float delta = fmaf(-decay, dot, v) * beta;
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] = fmaf(keys[i], delta, decay * s[i]);
        }
    }

    __device__ float dot(const float * q, int lane) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum = fmaf(s[i], q[i * LANES + lane], sum);
        }
        return warp_reduce_sum<LANES>(sum);
    }
};

// Grid: value head, sequence, block of rows. Block: lanes of a row, rows.
template <int S>
__global__ void __launch_bounds__(ggml_cuda_get_physical_warp_size() * WARPS_PER_BLOCK) gdn_replay(const gdn_args a) {
    const int head = blockIdx.x;
    const int seq = blockIdx.y;
    const int j = blockIdx.z * WARPS_PER_BLOCK + threadIdx.y;
    const int lane = threadIdx.x;
    const int k_head = head % a.n_k_heads;
    const int H = a.n_v_heads;
    const int replay = a.n_replay != nullptr ? a.n_replay[seq] : 0;
    const int n_head = a.n_tokens - a.n_tail;

    const int64_t at = (((int64_t) seq * H + head) * S + j) * S;
    float * cache = a.state_out + at;
    gdn_row<S> row;
    row.load(a.state + at, lane);

    for (int i = 0; i < replay; i++) {
        const float * rec = a.records + seq * a.row + i * a.slot;
        const float * value = rec + S * a.n_k_heads + S * head;
        const float * gates = rec + S * a.n_k_heads + S * H + head;
        row.advance(rec + S * k_head, value[j], expf(gates[0]), gates[H], lane);
    }
    if (n_head == 0 && replay > 0) {
        row.store(cache, lane);
    }
    const float scale = rsqrtf((float) S);
    for (int t = 0; t < a.n_tokens; t++) {
        const int64_t token = (int64_t) seq * a.n_tokens + t;
        row.advance(a.k + seq * a.k3 + t * a.k2 + k_head * a.k1, a.v[seq * a.v3 + t * a.v2 + head * a.v1 + j],
                    expf(a.g[token * H + head]), a.beta[token * H + head], lane);
        const float sum = row.dot(a.q + seq * a.q3 + t * a.q2 + k_head * a.q1, lane);
        if (lane == 0) {
            a.out[(token * H + head) * S + j] = sum * scale;
        }
        if (t + 1 == n_head) {
            row.store(cache, lane);
        }
    }
}

// Launch it after gdn_replay, which reads the old records. Grid: slot, sequence.
__global__ void write_records(const gdn_args a, int S) {
    const int slot = blockIdx.x;
    const int seq = blockIdx.y;
    const int t = a.n_tokens - a.n_tail + slot;
    const int H = a.n_v_heads;
    const int64_t gate = ((int64_t) seq * a.n_tokens + t) * H;
    float * rec = a.records + seq * a.row + slot * a.slot;
    for (int i = threadIdx.x; i < S * a.n_k_heads; i += blockDim.x) {
        rec[i] = a.k[seq * a.k3 + t * a.k2 + i / S * a.k1 + i % S];
    }
    rec += S * a.n_k_heads;
    for (int i = threadIdx.x; i < S * H; i += blockDim.x) {
        rec[i] = a.v[seq * a.v3 + t * a.v2 + i / S * a.v1 + i % S];
    }
    rec += S * H;
    for (int i = threadIdx.x; i < H; i += blockDim.x) {
        rec[i] = a.g[gate + i];
        rec[H + i] = a.beta[gate + i];
    }
}

template <int S>
void launch_rows(const gdn_args & a, int n_seqs, cudaStream_t stream) {
    const int warp = ggml_cuda_info().devices[ggml_cuda_get_device()].warp_size;
    const dim3 grid(a.n_v_heads, n_seqs, S / WARPS_PER_BLOCK);
    const dim3 block(warp < S ? warp : S, WARPS_PER_BLOCK);
    gdn_replay<S><<<grid, block, 0, stream>>>(a);
    if (a.n_tail > 0) {
        write_records<<<dim3(a.n_tail, n_seqs), 256, 0, stream>>>(a, S);
    }
    CUDA_CHECK(cudaGetLastError());
}

int64_t stride(const ggml_tensor * t, int dim) {
    return (int64_t) (t->nb[dim] / sizeof(float));
}

// Operands that both operations share; the state is updated in place.
gdn_args arguments(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    GGML_ASSERT(ggml_is_contiguous(dst->src[3]) && ggml_is_contiguous(dst->src[4]) && ggml_is_contiguous(dst->src[5]));
    GGML_ASSERT(q->nb[0] == sizeof(float) && k->nb[0] == sizeof(float) && v->nb[0] == sizeof(float));
    gdn_args a = {};
    a.q = (const float *) q->data;
    a.k = (const float *) k->data;
    a.v = (const float *) v->data;
    a.g = (const float *) dst->src[3]->data;
    a.beta = (const float *) dst->src[4]->data;
    a.state = (const float *) dst->src[5]->data;
    a.state_out = (float *) dst->src[5]->data;
    a.out = (float *) dst->data;
    a.n_k_heads = (int) k->ne[1];
    a.n_v_heads = (int) v->ne[1];
    a.n_tokens = (int) v->ne[2];
    a.q1 = stride(q, 1), a.q2 = stride(q, 2), a.q3 = stride(q, 3);
    a.k1 = stride(k, 1), a.k2 = stride(k, 2), a.k3 = stride(k, 3);
    a.v1 = stride(v, 1), a.v2 = stride(v, 2), a.v3 = stride(v, 3);
    return a;
}

void launch(const gdn_args & a, int64_t S, int n_seqs, cudaStream_t stream) {
    switch (S) {
    case 16:
        return launch_rows<16>(a, n_seqs, stream);
    case 32:
        return launch_rows<32>(a, n_seqs, stream);
    case 64:
        return launch_rows<64>(a, n_seqs, stream);
    case 128:
        return launch_rows<128>(a, n_seqs, stream);
    default:
        GGML_ABORT("head size %d", (int) S);
    }
}

}  // namespace

bool eagle_cuda_knows(const ggml_tensor * op) {
    if (op->op == GGML_OP_EAGLE_CONV_WINDOW) {
        return op->src[0]->ne[0] <= MAX_WINDOW;
    }
    if (eagle_gdn_is_mamba2(op)) {
        return eagle_cuda_knows_ssm(op);
    }
    const int64_t S = op->src[2]->ne[0];
    return S == 16 || S == 32 || S == 64 || S == 128;
}

static void eagle_cuda_gdn_replay(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * v = dst->src[2];
    const ggml_tensor * records = dst->src[6];
    const int n_recorded = dst->op_params[EAGLE_GDN_PARAM_N_RECORDED];
    gdn_args a = arguments(dst);
    a.records = records ? (float *) records->data + dst->op_params[EAGLE_GDN_PARAM_OFFSET] : nullptr;
    a.n_replay = (const int32_t *) dst->src[7]->data;
    a.n_tail = a.n_tokens < n_recorded ? a.n_tokens : n_recorded;
    a.row = records ? stride(records, 1) : 0;
    a.slot = v->ne[0] * (a.n_k_heads + a.n_v_heads) + 2 * a.n_v_heads;
    launch(a, v->ne[0], (int) v->ne[3], ctx.stream());
}

bool eagle_cuda_gdn(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * v = dst->src[2];
    const bool gate_per_head = dst->src[3]->ne[0] == 1;
    const bool one_state = ggml_get_op_params_i32(dst, 0) == 1;
    if (!gate_per_head || !one_state || dst->src[0]->ne[3] != v->ne[3] || dst->src[1]->ne[3] != v->ne[3]) {
        return false;
    }
    gdn_args a = arguments(dst);
    a.state_out = a.out + ggml_nelements(v);  // after the results
    launch(a, v->ne[0], (int) v->ne[3], ctx.stream());
    return true;
}

namespace {

struct window_args {
    float * window;
    const float * x;
    float * records;
    const int32_t * n_replay;
    float * out;
    int n_window, n_channels, n_tokens, n_tail;
    int64_t window2, x1, x2, row;  // floats between sequences, tokens, sequences, sequences
};

constexpr int TILE = 32;  // channels per block, and columns that it moves at a time
constexpr int TILE_ROWS = 8;

// Returns column `at` of the window, the recorded inputs and the new inputs in this order, for one channel of one
// sequence.
__device__ float window_column(const window_args & a, int seq, int c, int replay, int at) {
    if (at < a.n_window) {
        return a.window[seq * a.window2 + (int64_t) c * a.n_window + at];
    }
    at -= a.n_window;
    if (at < replay) {
        return a.records[seq * a.row + (int64_t) at * a.n_channels + c];
    }
    return a.x[seq * a.x2 + (at - replay) * a.x1 + c];
}

// The inputs are ordered by token, the output by channel. Tiles are transposed in shared memory, so that adjacent
// threads access adjacent floats on both sides. Grid: TILE channels, sequence. Block: channels, TILE_ROWS.
__global__ void __launch_bounds__(TILE * TILE_ROWS) conv_window(const window_args a) {
    __shared__ float tile[TILE][TILE + 1];
    const int c0 = blockIdx.x * TILE, c = c0 + threadIdx.x;
    const int seq = blockIdx.y;
    const int thread = threadIdx.y * TILE + threadIdx.x;
    const bool inside = c < a.n_channels;
    const int replay = a.n_replay[seq];
    const int n_head = a.n_tokens - a.n_tail, n_columns = a.n_window + a.n_tokens;
    const int n_channels = min(TILE, a.n_channels - c0);
    float * out = a.out + ((int64_t) seq * a.n_channels + c0) * n_columns;

    // Reads the old records and the old window before the in-place writes.
    float moved[MAX_WINDOW / TILE_ROWS];
    for (int i = 0; i < MAX_WINDOW / TILE_ROWS; i++) {
        const int w = i * TILE_ROWS + threadIdx.y;
        moved[i] = inside && w < a.n_window ? window_column(a, seq, c, replay, replay + n_head + w) : 0.0f;
    }
    for (int first = 0; first < n_columns; first += TILE) {
        const int n = min(TILE, n_columns - first);
        for (int w = threadIdx.y; inside && w < n; w += TILE_ROWS) {
            tile[threadIdx.x][w] = window_column(a, seq, c, replay, replay + first + w);
        }
        __syncthreads();
        for (int i = thread; i < n_channels * n; i += TILE * TILE_ROWS) {
            out[(int64_t) (i / n) * n_columns + first + i % n] = tile[i / n][i % n];
        }
        __syncthreads();
    }
    for (int i = 0; i < MAX_WINDOW / TILE_ROWS; i++) {
        const int w = i * TILE_ROWS + threadIdx.y;
        if (inside && w < a.n_window) {
            a.window[seq * a.window2 + (int64_t) c * a.n_window + w] = moved[i];
        }
    }
    for (int i = threadIdx.y; inside && i < a.n_tail; i += TILE_ROWS) {
        a.records[seq * a.row + (int64_t) i * a.n_channels + c] = a.x[seq * a.x2 + (n_head + i) * a.x1 + c];
    }
}

}  // namespace

static void eagle_cuda_conv_window(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * window = dst->src[0];
    const ggml_tensor * x = dst->src[1];
    const ggml_tensor * records = dst->src[2];
    const int n_recorded = dst->op_params[EAGLE_GDN_PARAM_N_RECORDED];
    GGML_ASSERT(x->nb[0] == sizeof(float) && ggml_is_contiguous(dst));

    window_args a;
    a.window = (float *) window->data;
    a.x = (const float *) x->data;
    a.records = records ? (float *) records->data + dst->op_params[EAGLE_GDN_PARAM_OFFSET] : nullptr;
    a.n_replay = (const int32_t *) dst->src[3]->data;
    a.out = (float *) dst->data;
    a.n_window = (int) window->ne[0];
    a.n_channels = (int) window->ne[1];
    a.n_tokens = (int) x->ne[1];
    a.n_tail = a.n_tokens < n_recorded ? a.n_tokens : n_recorded;
    a.window2 = stride(window, 2);
    a.x1 = stride(x, 1);
    a.x2 = stride(x, 2);
    a.row = records ? stride(records, 1) : 0;
    const dim3 grid((a.n_channels + TILE - 1) / TILE, (unsigned) x->ne[2]);
    conv_window<<<grid, dim3(TILE, TILE_ROWS), 0, ctx.stream()>>>(a);
    CUDA_CHECK(cudaGetLastError());
}

bool eagle_cuda_recurrent(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (dst->op == GGML_OP_EAGLE_CONV_WINDOW) {
        eagle_cuda_conv_window(ctx, dst);
        return true;
    }
    if (dst->op != GGML_OP_EAGLE_GDN) {
        return false;
    }
    (eagle_gdn_is_mamba2(dst) ? eagle_cuda_ssm_replay : eagle_cuda_gdn_replay)(ctx, dst);
    return true;
}
