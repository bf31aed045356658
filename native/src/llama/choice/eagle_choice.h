// Greedy choice from a row of logits, on the device that holds them (by graph nodes) or on the host.
#pragma once

#include "ggml.h"
#include "llama.h"

namespace eagle {

// The two most probable tokens of a row. ids[0] is the lowest id with the largest logit.
struct Choice {
    llama_token ids[2];
    float gap;  // difference of their logits; 0: a tie
};

// Chooses on the host from n >= 2 logits. ids[1] is the lowest id among equals, too. NaN counts as -inf.
Choice choose(const float * logits, int64_t n);

// Builds nodes that choose for each row of logits, contiguous F32 {n_vocab, n_rows}. Null if dev lacks one of the
// operations. read_choice reads the result, F32 {n_rows, 4}.
//
// ggml's ARGMAX may return any of several equal values, depending on the backend. So the result includes the values of
// the two largest logits: if they differ, the first one is the unique maximum.
ggml_tensor * choice_nodes(ggml_context * ctx, ggml_tensor * logits, ggml_backend_dev_t dev);

// Reads the choice for a row. Returns false if the host has to choose: equal logits, fewer than two finite logits, or
// one beyond 3e38. With NaN the result depends on the backend: it counts as -inf, or the host chooses.
bool read_choice(const float * result, int64_t n_rows, int64_t row, Choice & choice);

}  // namespace eagle
