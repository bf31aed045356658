// The tensors and constants of an EAGLE-3 draft, gathered once from what llama.cpp's loader has read.
#pragma once

#include <array>
#include <vector>

#include "ggml.h"

struct llama_model;

namespace eagle {

struct DraftLayer {
    ggml_tensor * attn_norm;    // {H}: input_layernorm
    ggml_tensor * hidden_norm;  // {H}: first layer only, else null
    ggml_tensor * q_norm;       // {head}, or null
    ggml_tensor * k_norm;
    ggml_tensor *wq, *wk, *wv, *wo;  // first layer: input 2H, else H
    ggml_tensor *bq, *bk, *bv, *bo;  // null without biases
    ggml_tensor * ffn_norm;
    ggml_tensor *ffn_gate, *ffn_up, *ffn_down;
};

struct DraftRope {
    int type;  // GGML_ROPE_TYPE_*
    int n_dims;
    int n_ctx_orig;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    ggml_tensor * factors;  // {n_dims/2} F32, or null
};

struct DraftModel {
    DraftModel(const llama_model & draft, const llama_model & target);

    int64_t n_embd;         // H
    int64_t n_embd_tgt;     // T
    int64_t n_aux;          // A
    int64_t n_vocab_draft;  // D
    int64_t n_vocab;        // V
    int64_t n_head, n_head_kv, n_head_dim;
    int64_t n_ctx_train;
    float norm_eps;
    bool norm_before_residual;
    bool norm_output;  // what is fed back is norm(x), not x

    std::vector<int32_t> aux_layer_ids;  // boundaries: residual entering block i

    ggml_tensor * fc;                    // {A*T, H}
    ggml_tensor * fc_bias;               // {H}, or null
    ggml_tensor * fc_input_norm;         // {A*T}: norm_before_fc, or null
    std::vector<ggml_tensor *> fc_norm;  // A times {T}, or empty
    ggml_tensor * output_norm;           // {H}
    ggml_tensor * output;                // {H, D}; the draft's own, or the target's
    ggml_tensor * tok_embd;              // {H, V}; the draft's own, or the target's
    std::vector<DraftLayer> layers;
    DraftRope rope;
    std::vector<int32_t> d2t_id;  // draft id -> target id, D entries; empty when D = V

    int32_t target_id(int32_t draft_id) const { return d2t_id.empty() ? draft_id : d2t_id[draft_id]; }

  private:
    void read_shapes(const llama_model & draft, const llama_model & target);
    void read_tensors(const llama_model & draft, const llama_model & target);
    void read_rope(const llama_model & draft);
    void read_d2t(const ggml_tensor * d2t);
};

}  // namespace eagle
