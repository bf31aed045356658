// Graph builders for the replayed recurrent state (eagle_round_state.h).

#pragma once

#include <cstdint>

#include "eagle_round_nodes.h"
#include "ggml-backend.h"
#include "ggml.h"

class llama_memory_recurrent_context;
class llm_graph_input_rs;
struct llm_graph_context;

// Parts of an architecture's graph that the builders use.
struct eagle_round_graph {
    ggml_context * ctx;
    ggml_cgraph * gf;
    ggml_backend_sched_t sched;
    const llama_memory_recurrent_context * mctx;
    ggml_tensor * n_replay;  // I32 [n_seqs]: eagle_round_state::input
    int il;

    eagle_round_graph(const llm_graph_context & graph, const llm_graph_input_rs * input, int il);
};

// Returns a view of the batch's cells in a cache tensor: [state_size, n_seqs].
ggml_tensor * eagle_round_cells(ggml_context * ctx, const llama_memory_recurrent_context * mctx, ggml_tensor * cache,
                                int64_t state_size, int64_t n_seqs);

// Returns the input of the convolution [window + T, channels, n_seqs] for x [channels, T, n_seqs], and updates the
// window in the cache.
ggml_tensor * eagle_round_conv_input(const eagle_round_graph & graph, ggml_tensor * x);

// Returns the attention output [v_dim, H, T, n_seqs], updates the state in the cache and records the tokens.
ggml_tensor * eagle_round_attn(const eagle_round_graph & graph, eagle_round_scan in);

// Same for Mamba 2, with dt as [H, T, n_seqs] and the state as eagle_round_cells returns it.
ggml_tensor * eagle_round_ssm(const eagle_round_graph & graph, eagle_round_scan in);
