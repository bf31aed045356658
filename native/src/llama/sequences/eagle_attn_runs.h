// Attention of sequences that do not all follow each other, in one ubatch.
#pragma once

#include <cstdint>

struct ggml_tensor;
struct llm_graph_context;

// Of llm_graph_context::build_attn_mha, in its units.
struct eagle_attn {
    ggml_tensor * q;  // [head_dim, n_head, n_tokens], sequence after sequence
    ggml_tensor * k;  // [head_dim, n_head_kv, n_kv, n_streams], from the first of the ubatch's streams to the last
    ggml_tensor * v;  // likewise
    ggml_tensor * kq_mask;  // [n_kv, tokens of a sequence, 1, n_sequences]
    ggml_tensor * sinks;
    ggml_tensor * v_mla;
    int64_t n_kv_max;
    float kq_scale;
    int il;
};

// Sequences have a stream of the KV cache each, and some streams between the ubatch's belong to none of its sequences.
bool eagle_attn_has_gaps(const ggml_tensor * k, const ggml_tensor * kq_mask);

// The same rows as of each sequence alone: attention of each run of neighbours, one after another.
ggml_tensor * eagle_attn_runs(const llm_graph_context & graph, const eagle_attn & whole);
