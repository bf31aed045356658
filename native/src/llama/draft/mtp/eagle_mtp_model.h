// The MTP head of a Qwen3.5, Qwen3.5-MoE or Qwen3-Next model: one full-attention block over the embedding of a token
// and the state before it. It is part of the target's file, or of a file that holds only this block.
#pragma once

#include "eagle_draft_model.h"
#include "llama-arch.h"

struct llama_layer;

namespace eagle {

// A weight, and the factor {1} (for experts {experts}) that some quantization types need; null: none.
struct MtpLinear {
    ggml_tensor * weight = nullptr;
    ggml_tensor * scale = nullptr;
};

struct MtpFeedForward {
    MtpLinear gate, up, down;
};

struct MtpModel : DraftModel {
    MtpModel(const llama_model & draft, const llama_context & target);

    static bool runs(llm_arch arch);

    std::vector<ggml_tensor **> weights() override;
    void build(const DraftTensors & tensors, DraftGraph & graph) const override;

    ggml_tensor * enorm;  // {H}: norm of the embedding
    ggml_tensor * hnorm;  // {H}: norm of the state before
    MtpLinear eh_proj;    // {2H, H}
    ggml_tensor *attn_norm, *q_norm, *k_norm, *ffn_norm;
    MtpLinear wq;  // {H, heads * 2 * head}: for each head its query, then its gate
    MtpLinear wk, wv, wo;

    MtpFeedForward dense;       // null with experts
    ggml_tensor * router;       // {H, experts}; null: dense
    MtpFeedForward experts;     // {.., .., experts}; gate null if gate_up holds both
    MtpLinear gate_up;          // {H, 2F, experts}
    ggml_tensor * shared_gate;  // {H}, or null
    MtpFeedForward shared;      // null without a shared expert
    int64_t n_expert, n_expert_used;
    float expert_scale;  // multiplies the weights of the chosen experts, which sum to 1; 0 or 1: no scaling

  private:
    void require_fit(const llama_model & draft, const llama_model & target) const;
    void read_shapes(const llama_model & draft, const llama_model & target);
    void read_block(const llama_layer & layer);
    void read_feed_forward(const llama_layer & layer);
    void read_vocabulary(const llama_model & draft, const llama_layer & layer);
    void read_rope(const llama_context & target);
};

}  // namespace eagle
