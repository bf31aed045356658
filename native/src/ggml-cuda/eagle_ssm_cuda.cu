// In-place scan of Mamba 2 on CUDA: a warp holds one state row in registers, replays the kept records, computes the new
// tokens, and writes the row once. As eagle_gdn_cuda.cu: replay counts are read on the device, and without contraction
// a token leaves the same bits when it is new and when it is replayed.

#include "eagle_gdn.h"
#include "eagle_gdn_cuda.cuh"

namespace {

constexpr int WARPS_PER_BLOCK = 4;

// Operands; strides in floats, 2 between tokens and 3 between sequences.
struct ssm_args {
    const float *C, *B, *x, *dt, *A;
    float * state;
    float * records;  // of sequence 0, slot 0
    const int32_t * n_replay;
    float * out;
    int n_groups, n_heads, n_channels, n_tokens, n_tail;
    int64_t B2, B3, C2, C3, x2, x3;
    int64_t row, slot;  // floats between sequences and between slots of the records
};

template <int N>
struct ssm_row {
    static constexpr int LANES = ggml_cuda_get_physical_warp_size() < N ? ggml_cuda_get_physical_warp_size() : N;
    static constexpr int PER_LANE = N / LANES;

    float s[PER_LANE];

    __device__ void load(const float * row, int lane) {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            s[i] = row[i * LANES + lane];
        }
    }

    __device__ void store(float * row, int lane) const {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            row[i * LANES + lane] = s[i];
        }
    }

    // s = exp(softplus(dt) * a) * s + B * (x * softplus(dt))
    __device__ void advance(const float * B, float x, float dt, float a, int lane) {
        const float rate = dt <= 20.0f ? log1pf(expf(dt)) : dt;
        const float decay = expf(rate * a);
        const float delta = x * rate;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            s[i] = fmaf(B[i * LANES + lane], delta, decay * s[i]);
        }
    }

    __device__ float dot(const float * C, int lane) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            sum = fmaf(s[i], C[i * LANES + lane], sum);
        }
        return warp_reduce_sum<LANES>(sum);
    }
};

// Grid: head, sequence, block of channels. Block: lanes of a row, rows.
template <int N>
__global__ void __launch_bounds__(ggml_cuda_get_physical_warp_size() * WARPS_PER_BLOCK) ssm_replay(const ssm_args a) {
    const int head = blockIdx.x, seq = blockIdx.y, lane = threadIdx.x;
    const int channel = blockIdx.z * WARPS_PER_BLOCK + threadIdx.y;
    const int group = head / (a.n_heads / a.n_groups) * N;
    const int at = head * a.n_channels + channel;
    const int replay = a.n_replay[seq], n_head = a.n_tokens - a.n_tail;
    if (channel >= a.n_channels) {
        return;  // shuffles stay within a row
    }
    float * cache = a.state + ((int64_t) seq * a.n_heads * a.n_channels + at) * N;
    ssm_row<N> row;
    row.load(cache, lane);

    for (int i = 0; i < replay; i++) {
        const float * rec = a.records + seq * a.row + i * a.slot;
        const float * x = rec + N * a.n_groups;
        row.advance(rec + group, x[at], x[a.n_channels * a.n_heads + head], a.A[head], lane);
    }
    if (n_head == 0 && replay > 0) {
        row.store(cache, lane);
    }
    for (int t = 0; t < a.n_tokens; t++) {
        const int64_t token = (int64_t) seq * a.n_tokens + t;
        row.advance(a.B + seq * a.B3 + t * a.B2 + group, a.x[seq * a.x3 + t * a.x2 + at],
                    a.dt[token * a.n_heads + head], a.A[head], lane);
        const float sum = row.dot(a.C + seq * a.C3 + t * a.C2 + group, lane);
        if (lane == 0) {
            a.out[token * a.n_heads * a.n_channels + at] = sum;
        }
        if (t + 1 == n_head) {
            row.store(cache, lane);
        }
    }
}

// Launch it after ssm_replay, which reads the old records. Grid: slot, sequence.
__global__ void write_ssm_records(const ssm_args a, int N) {
    const int slot = blockIdx.x, seq = blockIdx.y;
    const int t = a.n_tokens - a.n_tail + slot;
    float * rec = a.records + seq * a.row + slot * a.slot;
    for (int i = threadIdx.x; i < N * a.n_groups; i += blockDim.x) {
        rec[i] = a.B[seq * a.B3 + t * a.B2 + i];
    }
    rec += N * a.n_groups;
    for (int i = threadIdx.x; i < a.n_channels * a.n_heads; i += blockDim.x) {
        rec[i] = a.x[seq * a.x3 + t * a.x2 + i];
    }
    rec += a.n_channels * a.n_heads;
    for (int i = threadIdx.x; i < a.n_heads; i += blockDim.x) {
        rec[i] = a.dt[((int64_t) seq * a.n_tokens + t) * a.n_heads + i];
    }
}

int64_t stride(const ggml_tensor * t, int dim) {
    return (int64_t) (t->nb[dim] / sizeof(float));
}

template <int N>
void launch_rows(const ssm_args & a, int n_seqs, cudaStream_t stream) {
    const int warp = ggml_cuda_info().devices[ggml_cuda_get_device()].warp_size;
    const dim3 grid(a.n_heads, n_seqs, (a.n_channels + WARPS_PER_BLOCK - 1) / WARPS_PER_BLOCK);
    const dim3 block(warp < N ? warp : N, WARPS_PER_BLOCK);
    ssm_replay<N><<<grid, block, 0, stream>>>(a);
    if (a.n_tail > 0) {
        write_ssm_records<<<dim3(a.n_tail, n_seqs), 256, 0, stream>>>(a, N);
    }
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace

bool eagle_cuda_knows_ssm(const ggml_tensor * op) {
    const int64_t N = op->src[1]->ne[0];
    return N == 16 || N == 32 || N == 64 || N == 128 || N == 256;
}

void eagle_cuda_ssm_replay(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor *C = dst->src[0], *B = dst->src[1], *x = dst->src[2], *records = dst->src[6];
    const int n_recorded = dst->op_params[EAGLE_GDN_PARAM_N_RECORDED];
    GGML_ASSERT(ggml_is_contiguous(dst->src[3]) && ggml_is_contiguous(dst->src[5]));
    GGML_ASSERT(C->nb[1] == B->nb[1] && B->nb[1] == B->ne[0] * sizeof(float) && x->nb[1] == x->ne[0] * sizeof(float));
    ssm_args a = {};
    a.C = (const float *) C->data;
    a.B = (const float *) B->data;
    a.x = (const float *) x->data;
    a.dt = (const float *) dst->src[3]->data;
    a.A = (const float *) dst->src[4]->data;
    a.state = (float *) dst->src[5]->data;
    a.records = records ? (float *) records->data + dst->op_params[EAGLE_GDN_PARAM_OFFSET] : nullptr;
    a.n_replay = (const int32_t *) dst->src[7]->data;
    a.out = (float *) dst->data;
    a.n_groups = (int) B->ne[1];
    a.n_channels = (int) x->ne[0];
    a.n_heads = (int) x->ne[1];
    a.n_tokens = (int) x->ne[2];
    a.n_tail = a.n_tokens < n_recorded ? a.n_tokens : n_recorded;
    a.B2 = stride(B, 2), a.B3 = stride(B, 3);
    a.C2 = stride(C, 2), a.C3 = stride(C, 3);
    a.x2 = stride(x, 2), a.x3 = stride(x, 3);
    a.row = records ? stride(records, 1) : 0;
    a.slot = B->ne[0] * a.n_groups + (int64_t) a.n_channels * a.n_heads + a.n_heads;
    const int n_seqs = (int) x->ne[3];
    switch (B->ne[0]) {
    case 16:
        return launch_rows<16>(a, n_seqs, ctx.stream());
    case 32:
        return launch_rows<32>(a, n_seqs, ctx.stream());
    case 64:
        return launch_rows<64>(a, n_seqs, ctx.stream());
    case 128:
        return launch_rows<128>(a, n_seqs, ctx.stream());
    case 256:
        return launch_rows<256>(a, n_seqs, ctx.stream());
    default:
        GGML_ABORT("state size %d", (int) B->ne[0]);
    }
}
