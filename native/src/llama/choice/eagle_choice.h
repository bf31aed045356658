// The greedy choice among a row of logits, taken where the logits are: by nodes of a graph, or by the host.
#pragma once

#include "ggml.h"
#include "llama.h"

namespace eagle {

// The two likeliest tokens of a row. Where several share the largest logit, ids[0] is the lowest of them.
struct Choice {
    llama_token ids[2];
    float gap;  // between their logits; 0: a tie
};

// The host's answer for n >= 2 logits: also ids[1] is the lowest among equals. NaN counts as -inf.
Choice choose(const float * logits, int64_t n);

// Nodes that choose for each row of logits, contiguous F32 {n_vocab, n_rows}; null where dev has not all of them. The
// result, F32 {n_rows, 4}, is read by read_choice.
//
// ggml's ARGMAX may name any of several equal values, and which one depends on the backend. So nothing is asked of it
// but the values of the two largest logits: where they differ, the first is the only largest one.
ggml_tensor * choice_nodes(ggml_context * ctx, ggml_tensor * logits, ggml_backend_dev_t dev);

// What the nodes chose for a row. False where the host has to: equal logits, fewer than two of them finite, any beyond
// 3e38. Whether NaN counts as -inf or makes the host decide depends on the backend.
bool read_choice(const float * result, int64_t n_rows, int64_t row, Choice & choice);

}  // namespace eagle
