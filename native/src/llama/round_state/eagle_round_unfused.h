// Replay of the recurrent state with ggml's own operations: for devices without ours, and for commits outside a decode.

#pragma once

#include "eagle_round_graph.h"

class llama_memory_recurrent;

// Same as eagle_round_conv_input; window: a view of the cache [window, channels, n_seqs].
ggml_tensor * eagle_round_unfused_conv_input(const eagle_round_graph & graph, ggml_tensor * window, ggml_tensor * x);

// Same as eagle_round_attn, for cells without a pending replay.
ggml_tensor * eagle_round_unfused_attn(const eagle_round_graph & graph, eagle_round_scan in);

// Computes the pending replay of a cell and stores it in the cache.
ggml_status eagle_round_commit_cell(llama_memory_recurrent & mem, ggml_backend_sched_t sched, uint32_t cell);
