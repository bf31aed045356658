// Attention in one ubatch of sequences whose KV cache streams are not adjacent.
#pragma once

#include <cstdint>

struct ggml_tensor;
struct llm_graph_context;

// Arguments of llm_graph_context::build_attn_mha.
struct eagle_attn {
    ggml_tensor * q;        // [head_dim, n_head, n_tokens], grouped by sequence
    ggml_tensor * k;        // [head_dim, n_head_kv, n_kv, n_streams], from the ubatch's first stream to its last
    ggml_tensor * v;        // same as k
    ggml_tensor * kq_mask;  // [n_kv, tokens of a sequence, 1, n_sequences]
    ggml_tensor * sinks;
    ggml_tensor * v_mla;
    int64_t n_kv_max;
    float kq_scale;
    int il;
};

// Returns true if some streams of the KV cache between the first and the last belong to no sequence of the ubatch.
bool eagle_attn_has_gaps(const ggml_tensor * k, const ggml_tensor * kq_mask);

// Returns the largest number of nodes that gaps add to a graph of n_layer layers: when every second sequence is in the
// ubatch.
uint32_t eagle_attn_runs_max_nodes(uint32_t n_layer, uint32_t n_seq_max);

// Computes attention separately for each run of adjacent streams. The rows have the same bits as for each sequence
// alone.
ggml_tensor * eagle_attn_runs(const llm_graph_context & graph, const eagle_attn & whole);
