// The replayed recurrent state with ggml's own operations, for devices that do not know ours, and outside of decodes.

#pragma once

#include "eagle_round_graph.h"

class llama_memory_recurrent;

// As eagle_round_conv_input; window: in the cache [window, channels, n_seqs].
ggml_tensor * eagle_round_unfused_conv_input(const eagle_round_graph & graph, ggml_tensor * window, ggml_tensor * x);

// As eagle_round_attn, of cells without a pending replay.
ggml_tensor * eagle_round_unfused_attn(const eagle_round_graph & graph, eagle_round_gdn in);

// Computes the pending replay of one cell into its cache rows.
ggml_status eagle_round_commit_cell(llama_memory_recurrent & mem, ggml_backend_sched_t sched, uint32_t cell);
