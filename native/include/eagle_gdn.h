// eagle_gdn.h: the graph operations of the replayed recurrent state.
//
// They are ggml's GATED_DELTA_NET, its SSM_SCAN of Mamba 2, and the window of its SSM_CONV, with replay and in place.
// They have operation codes of their own (patch 0204), so that backends without them refuse them; only the CPU's and
// CUDA's have them. The graph builder uses them if the device of the cache supports them. T tokens per sequence, W =
// conv kernel - 1, R record slots per sequence (0: nothing can be undone). Dimensions in ggml's order; f32 unless
// noted.
//
// GGML_OP_EAGLE_GDN                                      GGML_OP_EAGLE_CONV_WINDOW
//   src 0..4  q, k, v, g, beta as upstream                 src 0  conv window in the cache [W, channels, n_seqs]
//   src 5     state in the cache [S, S, H, n_seqs]         src 1  the new tokens' inputs [channels, T, n_seqs]
//   src 6     records [row, n_seqs], absent if R = 0       src 2  records [row, n_seqs], absent if R = 0
//   src 7     I32 [n_seqs], recorded tokens to replay      src 3  I32 [n_seqs], recorded tokens to replay
//   result    [S * H, T * n_seqs], the attention output    result [W + T, channels, n_seqs], input of the convolution
//
// GGML_OP_EAGLE_GDN of the kind EAGLE_GDN_MAMBA2, with heads of D channels that have N values each:
//   src 0..4  C and B [N, groups, T, n_seqs], x [D, H, T, n_seqs], dt [1, H, T, n_seqs], A [1, H]
//   src 5     state in the cache [N, D, H, n_seqs]
//   result    [D * H, T * n_seqs]
//
// Cache and records are read and written in place. With r = tokens to replay, tail = min(T, N_RECORDED <= R): the
// recorded tokens 0..r-1 are replayed, then the T new ones run; the cache receives the state after r + T - tail of
// them, and the records the last `tail` new tokens.
//
// A sequence's record row holds R conv inputs [channels] at float 0, then R tokens at `offset`: [k | v | g | beta], or
// [B | x | dt].

#pragma once

#include "ggml.h"

// Indices into op_params.
enum eagle_gdn_param {
    EAGLE_GDN_PARAM_N_RECORDED = 0,  // R, or 0: the cache receives the state after all tokens
    EAGLE_GDN_PARAM_OFFSET = 1,      // floats from the start of a record row to this operation's part
    EAGLE_GDN_PARAM_KIND = 2,
};

enum eagle_gdn_kind {
    EAGLE_GDN_DELTA_NET = 0,
    EAGLE_GDN_MAMBA2 = 1,
};

// Returns true if the result of the conv window is stored token by token: [W + T, channels] with strides (channels, 1).
// Only the CPU's convolution supports that layout, so graphs that run on the CPU alone use it.
static inline int eagle_gdn_is_token_major(const struct ggml_tensor * t) {
    return t->nb[0] > t->nb[1];
}

static inline int eagle_gdn_is_mamba2(const struct ggml_tensor * op) {
    return op->op_params[EAGLE_GDN_PARAM_KIND] == EAGLE_GDN_MAMBA2;
}

// Index of the source that is in the cache: the state, or the window.
static inline int eagle_gdn_cache_src(const struct ggml_tensor * op) {
    return op->op == GGML_OP_EAGLE_GDN ? 5 : 0;
}

static inline int eagle_gdn_records_src(const struct ggml_tensor * op) {
    return op->op == GGML_OP_EAGLE_GDN ? 6 : 2;
}

static inline int eagle_gdn_is_ours(const struct ggml_tensor * op) {
    return op->op == GGML_OP_EAGLE_GDN || op->op == GGML_OP_EAGLE_CONV_WINDOW;
}
