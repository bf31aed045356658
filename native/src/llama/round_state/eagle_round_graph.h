// Graphs over the replayed recurrent state (eagle_round_state.h).

#pragma once

#include <cstdint>

#include "eagle_round_nodes.h"
#include "ggml-backend.h"
#include "ggml.h"

class llama_memory_recurrent_context;

// What the builders need of an architecture's graph.
struct eagle_round_graph {
    ggml_context * ctx;
    ggml_cgraph * gf;
    ggml_backend_sched_t sched;
    const llama_memory_recurrent_context * mctx;
    ggml_tensor * n_replay;  // I32 [n_seqs]
    int il;
};

// Whether the state is replayed, and this decode leaves nothing to replay: such a graph has other nodes.
bool eagle_round_at_once(const llama_memory_recurrent_context * mctx);

// The batch's cells of a cache tensor, in place: [state_size, n_seqs].
ggml_tensor * eagle_round_cells(ggml_context * ctx, const llama_memory_recurrent_context * mctx, ggml_tensor * cache,
                                int64_t state_size, int64_t n_seqs);

// x [channels, T, n_seqs] -> input of the convolution [window + T, channels, n_seqs]; the window in the cache moves.
ggml_tensor * eagle_round_conv_input(const eagle_round_graph & graph, ggml_tensor * x);

// Attention output [S, H, T, n_seqs]; the state in the cache moves and the tokens are recorded.
ggml_tensor * eagle_round_attn(const eagle_round_graph & graph, eagle_round_gdn in);
