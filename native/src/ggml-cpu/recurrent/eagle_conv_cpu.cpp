// In-place conv window of Gated DeltaNet layers on the CPU, and the convolution over its token-major layout.
//
// ggml's ssm_conv expects each channel's inputs to be contiguous, so every new token is scattered over its channels,
// and the convolution sums four adjacent values. In token-major layout both work on whole vectors of channels. The sum
// of a channel has ggml's order and does not depend on other tokens.
//
// This file convolves both layouts, with separate products and sums (native/cmake/EagleSources.cmake). Left to the
// compiler, ggml's loop and ours were fused differently on some CPUs, and replay differed from snapshots in the last
// bit.

#include <algorithm>
#include <cstring>

#include "eagle_gdn.h"
#include "eagle_gdn_cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

namespace {

constexpr int64_t BLOCK = 256;  // channels per unit of work

// Operands of a conv window (eagle_gdn.h).
struct window_op {
    ggml_tensor * window;
    const ggml_tensor * x;
    ggml_tensor * records;
    const int32_t * n_replay;
    ggml_tensor * dst;
    int64_t W, C, T, n_tail, offset;

    explicit window_op(ggml_tensor * dst)
        : window(dst->src[0]),
          x(dst->src[1]),
          records(dst->src[2]),
          n_replay((const int32_t *) dst->src[3]->data),
          dst(dst) {
        W = window->ne[0];
        C = window->ne[1];
        T = x->ne[1];
        n_tail = std::min<int64_t>(T, dst->op_params[EAGLE_GDN_PARAM_N_RECORDED]);
        offset = dst->op_params[EAGLE_GDN_PARAM_OFFSET];
        GGML_ASSERT(x->nb[0] == sizeof(float));
    }

    float * record(int64_t seq, int64_t slot) const {
        return (float *) ((char *) records->data + seq * records->nb[1]) + offset + slot * C;
    }

    const float * input(int64_t seq, int64_t t) const {
        return (const float *) ((const char *) x->data + t * x->nb[1] + seq * x->nb[2]);
    }

    float * cache(int64_t seq) const { return (float *) ((char *) window->data + seq * window->nb[2]); }
};

// Output of one sequence in either layout.
struct columns {
    float * data;
    int64_t per_column;
    int64_t per_channel;

    columns(const ggml_tensor * dst, int64_t seq)
        : data((float *) ((char *) dst->data + seq * dst->nb[2])),
          per_column(dst->nb[0] / sizeof(float)),
          per_channel(dst->nb[1] / sizeof(float)) {}

    float & at(int64_t column, int64_t c) const { return data[column * per_column + c * per_channel]; }

    void set(int64_t column, const float * from, int64_t c0, int64_t c1) const {
        if (per_channel == 1) {
            memcpy(&at(column, c0), from + c0, (c1 - c0) * sizeof(float));
            return;
        }
        for (int64_t c = c0; c < c1; c++) {
            at(column, c) = from[c];
        }
    }
};

// Computes channels [c0, c1) of one sequence: writes the window after the replayed tokens and the new inputs to the
// output, and the committed window to the cache. Channels are independent, so other threads do not access these.
void move_window(const window_op & op, int64_t seq, int64_t c0, int64_t c1) {
    const int64_t replay = op.n_replay[seq];
    const int64_t n_head = op.T - op.n_tail;
    float * window = op.cache(seq);
    const columns out(op.dst, seq);

    for (int64_t w = 0; w < op.W; w++) {
        const int64_t from = w + replay;  // index into the window followed by the replayed inputs
        if (from >= op.W) {
            out.set(w, op.record(seq, from - op.W), c0, c1);
            continue;
        }
        for (int64_t c = c0; c < c1; c++) {
            out.at(w, c) = window[c * op.W + from];
        }
    }
    for (int64_t t = 0; t < op.T; t++) {
        out.set(op.W + t, op.input(seq, t), c0, c1);
    }
    if (replay + n_head > 0) {
        for (int64_t c = c0; c < c1; c++) {
            for (int64_t w = 0; w < op.W; w++) {
                window[c * op.W + w] = out.at(n_head + w, c);
            }
        }
    }
    for (int64_t slot = 0; slot < op.n_tail; slot++) {
        memcpy(op.record(seq, slot) + c0, op.input(seq, n_head + slot) + c0, (c1 - c0) * sizeof(float));
    }
}

// Convolves channels [c0, c1) of one sequence from token-major columns, in whole vectors of channels.
template <int K>
void convolve_tokens(const ggml_tensor * dst, int64_t seq, int64_t c0, int64_t c1) {
    const ggml_tensor * kernel = dst->src[1];
    const columns in(dst->src[0], seq);
    const int64_t n = c1 - c0;
    float weight[K][BLOCK];
    for (int64_t c = 0; c < n; c++) {
        const float * row = (const float *) ((const char *) kernel->data + (c0 + c) * kernel->nb[1]);
        for (int k = 0; k < K; k++) {
            weight[k][c] = row[k];
        }
    }
    for (int64_t t = 0; t < dst->ne[1]; t++) {
        float * out = (float *) ((char *) dst->data + t * dst->nb[1] + seq * dst->nb[2]) + c0;
        const float * x[K];
        for (int k = 0; k < K; k++) {
            x[k] = &in.at(t + k, c0);
        }
        for (int64_t c = 0; c < n; c++) {
            float sum = 0.0f;
            for (int k = 0; k < K; k++) {
                sum += x[k][c] * weight[k][c];
            }
            out[c] = sum;
        }
    }
}

// Convolves channels [c0, c1) of one sequence from ggml's layout, where the columns of a channel are contiguous.
template <int K>
void convolve_channels(const ggml_tensor * dst, int64_t seq, int64_t c0, int64_t c1) {
    const ggml_tensor * kernel = dst->src[1];
    const columns in(dst->src[0], seq);
    for (int64_t c = c0; c < c1; c++) {
        const float * x = &in.at(0, c);
        const float * weight = (const float *) ((const char *) kernel->data + c * kernel->nb[1]);
        for (int64_t t = 0; t < dst->ne[1]; t++) {
            float sum = 0.0f;
            for (int k = 0; k < K; k++) {
                sum += x[t + k] * weight[k];
            }
            *((float *) ((char *) dst->data + t * dst->nb[1] + seq * dst->nb[2]) + c) = sum;
        }
    }
}

using convolution = void (*)(const ggml_tensor * dst, int64_t seq, int64_t c0, int64_t c1);

convolution convolution_of(const ggml_tensor * dst) {
    const bool tokens = eagle_gdn_is_token_major(dst->src[0]);
    switch (dst->src[1]->ne[0]) {
    case 2:
        return tokens ? convolve_tokens<2> : convolve_channels<2>;
    case 3:
        return tokens ? convolve_tokens<3> : convolve_channels<3>;
    case 4:
        return tokens ? convolve_tokens<4> : convolve_channels<4>;
    default:
        return nullptr;
    }
}

// Calls `work` for this thread's blocks of channels of all sequences.
template <typename Work>
void for_each_block(const ggml_compute_params * params, int64_t channels, int64_t n_seqs, Work && work) {
    const int64_t per_seq = (channels + BLOCK - 1) / BLOCK;
    const int64_t n_units = n_seqs * per_seq;
    const int64_t each = (n_units + params->nth - 1) / params->nth;
    const int64_t end = std::min(n_units, each * (params->ith + 1));
    for (int64_t u = each * params->ith; u < end; u++) {
        const int64_t c0 = u % per_seq * BLOCK;
        work(u / per_seq, c0, std::min(c0 + BLOCK, channels));
    }
}

}  // namespace

void eagle_cpu_conv_window(const ggml_compute_params * params, ggml_tensor * dst) {
    const window_op op(dst);
    for_each_block(params, op.C, dst->ne[2],
                   [&](int64_t seq, int64_t c0, int64_t c1) { move_window(op, seq, c0, c1); });
}

bool eagle_cpu_conv(const ggml_compute_params * params, ggml_tensor * dst) {
    const convolution run = convolution_of(dst);
    if (!run || dst->src[0]->type != GGML_TYPE_F32 || dst->src[1]->type != GGML_TYPE_F32) {
        return false;
    }
    for_each_block(params, dst->ne[0], dst->ne[2], [&](int64_t seq, int64_t c0, int64_t c1) { run(dst, seq, c0, c1); });
    return true;
}
