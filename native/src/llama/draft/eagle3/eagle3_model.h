// Tensors and constants of an EAGLE-3 draft.
#pragma once

#include "eagle_draft_model.h"

namespace eagle {

struct Eagle3Layer {
    ggml_tensor * attn_norm;    // {H}: input_layernorm
    ggml_tensor * hidden_norm;  // {H}: first layer only, else null
    ggml_tensor * q_norm;       // {head}, or null
    ggml_tensor * k_norm;
    ggml_tensor *wq, *wk, *wv, *wo;  // first layer: input 2H, else H
    ggml_tensor *bq, *bk, *bv, *bo;  // null without biases
    ggml_tensor * ffn_norm;
    ggml_tensor *ffn_gate, *ffn_up, *ffn_down;
    ggml_tensor *attn_post_norm, *ffn_post_norm;  // {H}: of Gemma 4's block, else null
    ggml_tensor * out_scale;                      // {1}, with these norms

    bool is_gemma() const { return attn_post_norm != nullptr; }
};

struct Eagle3Model : DraftModel {
    Eagle3Model(const llama_model & draft, const llama_model & target);

    std::vector<ggml_tensor **> weights() override;
    void build(const DraftTensors & tensors, DraftGraph & graph) const override;

    bool norm_before_residual;
    float logit_softcap;                 // 0: none
    ggml_tensor * fc;                    // {A*T, H}
    ggml_tensor * fc_bias;               // {H}, or null
    ggml_tensor * fc_input_norm;         // {A*T}: norm_before_fc, or null
    ggml_tensor * fc_mask;               // {A*T}: states of mask rows (P-EAGLE), or null
    std::vector<ggml_tensor *> fc_norm;  // A times {T}, or empty
    std::vector<Eagle3Layer> layers;

  private:
    void read_shapes(const llama_model & draft, const llama_model & target);
    void read_window(const llama_model & draft);
    void read_block(const llama_model & draft);
    void read_tensors(const llama_model & draft, const llama_model & target);
    void read_rope(const llama_model & draft);
    void read_sections(const llama_model & draft);
};

}  // namespace eagle
