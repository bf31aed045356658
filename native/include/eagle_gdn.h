// eagle_gdn.h: the two operations of the replayed recurrent state, as the graph builder and the backends see them.
//
// Both are marked variants of ggml operations, so that no operation table changes: a backend that knows them looks for
// EAGLE_GDN_TAG in op_params[EAGLE_GDN_PARAM_TAG]. The graph builder uses them only where the cache lies on a backend
// that does (CPU, CUDA). T tokens per sequence, W = conv kernel - 1, R record slots per sequence (0: nothing can be
// undone). ggml's order of dimensions, everything f32 unless said otherwise.
//
// GGML_OP_GATED_DELTA_NET, replaying                     GGML_OP_SSM_CONV, replaying
//   src 0..4  q, k, v, g, beta as upstream                 src 0  conv window in the cache [W, channels, n_seqs]
//   src 5     state in the cache [S, S, H, n_seqs]         src 1  the new tokens' inputs [channels, T, n_seqs]
//   src 6     records [row, n_seqs], absent if R = 0       src 2  records [row, n_seqs], absent if R = 0
//   src 7     I32 [n_seqs], recorded tokens to replay      src 3  I32 [n_seqs], recorded tokens to replay
//   result    [S * H, T * n_seqs], the attention output    result [W + T, channels, n_seqs], input of the convolution
//
// Cache and records are read and written in place. With r = tokens to replay, tail = min(T, R): the recorded tokens
// 0..r-1 are replayed, then the T new ones run; the cache receives the state after r + T - tail of them, and the
// records the last `tail` new tokens.
//
// A sequence's record row holds R conv inputs [channels] at float 0, then R tokens [k | v | g | beta] at `offset`.

#pragma once

#include "ggml.h"

#define EAGLE_GDN_TAG 0x4e444745  // "EGDN"

enum eagle_gdn_param {
    EAGLE_GDN_PARAM_TAG = 1,      // op_params[0] stays upstream's snapshot count, 1
    EAGLE_GDN_PARAM_N_SLOTS = 2,  // R
    EAGLE_GDN_PARAM_OFFSET = 3,   // floats from the start of a record row to this operation's part
};

// Where no other backend can meet it, the conv window's result is stored token by token: [W + T, channels] with strides
// (channels, 1). The CPU's convolution takes that.
static inline int eagle_gdn_is_token_major(const struct ggml_tensor * t) {
    return t->nb[0] > t->nb[1];
}

static inline int eagle_gdn_is_replay(const struct ggml_tensor * op) {
    return op->op_params[EAGLE_GDN_PARAM_TAG] == EAGLE_GDN_TAG;
}
