// Tensors and constants of a DFlash, DFlash2 or DSpark draft: each pass proposes a whole block of tokens.
#pragma once

#include "eagle_draft_model.h"

namespace eagle {

// Local convolutions of DFlash2 over the rows of a block, before (side 0) and after (side 1) a part of a layer.
struct DFlashConvolution {
    ggml_tensor * base = nullptr;  // {H, taps, 2}; null: none
    ggml_tensor * proj = nullptr;  // {H, groups * taps * 2}: more factors of each group of channels, from the input
};

// Selector of DFlash2: chooses among the most probable tokens of a row by the token before.
struct DFlashSelector {
    ggml_tensor * before = nullptr;  // {rank, V}; null: none
    ggml_tensor * after = nullptr;   // {rank, V}
    ggml_tensor * hidden = nullptr;  // {H, rank}
    int32_t n_candidates = 0;
};

// Markov head of DSpark: adds to a row's logits by the token before. A gated head also reads the row's state H, and a
// recurrent one its own state (rank values) of the row before.
struct DFlashMarkov {
    ggml_tensor * w1 = nullptr;     // {rank, V}; null: none
    ggml_tensor * w2 = nullptr;     // {rank, D}
    ggml_tensor * scale = nullptr;  // {1}, or null
    ggml_tensor * gate = nullptr;  // {H + rank, rank} of a gated head, {2*rank + H, 3*rank} of a recurrent one, or null
    ggml_tensor * gate_bias = nullptr;  // with it

    bool is_recurrent() const { return gate->ne[1] == 3 * w1->ne[0]; }
};

struct DFlashLayer {
    ggml_tensor * attn_norm;
    ggml_tensor *wq, *wk, *wv, *wo;  // wv is null if the keys before their norm are the values
    ggml_tensor *q_norm, *k_norm;    // {head}
    ggml_tensor * sinks;             // {heads}, or null
    ggml_tensor * ffn_norm;
    ggml_tensor *ffn_gate, *ffn_up, *ffn_down;
    DFlashConvolution attn_conv, ffn_conv;
    ggml_tensor *attn_post_norm, *ffn_post_norm;  // {H}: of Gemma 4's block, else null
    ggml_tensor * out_scale;                      // {1}, with these norms

    bool is_gemma() const { return attn_post_norm != nullptr; }
};

struct DFlashModel : DraftModel {
    DFlashModel(const llama_model & draft, const llama_model & target);

    std::vector<ggml_tensor **> weights() override;
    std::vector<ggml_tensor **> tables() override { return {&markov.w1, &selector.before, &selector.after}; }
    void build(const DraftTensors & tensors, DraftGraph & graph) const override;

    ggml_tensor * fc;           // {A*T, H}
    ggml_tensor * hidden_norm;  // {H}: norm of the projected states
    std::vector<DFlashLayer> layers;
    DFlashSelector selector;
    DFlashMarkov markov;
    bool gelu;
    float embedding_scale;  // of the block's embeddings; these four: 0 for none
    float value_scale;      // of the attention's output
    float logit_scale;
    float logit_softcap;

  private:
    void require_fit(const llama_model & draft, const llama_model & target) const;
    void read_shapes(const llama_model & draft, const llama_model & target);
    void read_block(const llama_model & draft);
    void read_tensors(const llama_model & draft, const llama_model & target);
    void read_choice(const llama_model & draft);
    void require_gate() const;
    void read_rope(const llama_model & draft);
};

}  // namespace eagle
