// Tensors and constants that every kind of draft model has, read once from the loaded llama_model: decoder layers over
// states of the target, a head, an embedding table. The kinds are in eagle3/, mtp/ and dflash/.
#pragma once

#include <array>
#include <vector>

#include "eagle_draft_graph.h"
#include "ggml.h"
#include "llama.h"

namespace eagle {

struct DraftRope {
    int type;  // GGML_ROPE_TYPE_*
    int n_dims;
    int n_ctx_orig;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    ggml_tensor * factors;  // {n_dims/2} F32, or null

    // M-RoPE: number of rotated pairs for time, height, width and a fourth part, in the order that `type` defines. All
    // 0: plain RoPE.
    std::array<int, GGML_MROPE_SECTIONS> sections = {};
    bool rest_is_time =
        false;  // the fourth part is the time instead of 0; it rotates the pairs that the sections do not cover
    bool pairs_adjacent = false;  // the two rows of a pair are adjacent in the weights

    bool has_sections() const { return sections[0] + sections[1] + sections[2] > 0; }
};

// A draft model that proposes all tokens in one pass over a block of rows: the last token, then mask tokens.
// P-EAGLE: the row of the last token is a row with states of the target, which mask rows follow.
struct DraftBlock {
    int32_t n_max = 0;  // longest draft; 0: the model drafts one token at a time
    llama_token mask = -1;
    bool from_anchor = false;    // the row of the last token proposes the first token; else the row after it does
    bool causal = false;         // rows of the block do not attend to later ones
    bool causal_window = false;  // the same in layers with a sliding window
    bool follows_row = false;  // the block begins with the last row that has states, and passes through the layers with
                               // all rows; such a block is causal, and its first row proposes the first token

    // Number of rows that propose n_steps tokens, without a row that has states.
    int32_t n_rows(int32_t n_steps) const { return n_steps + (follows_row ? -1 : from_anchor ? 0 : 1); }
};

struct DraftModel {
    virtual ~DraftModel() = default;

    // Every weight that the graphs read, null if absent. DraftWeights replaces those that the device cannot read.
    virtual std::vector<ggml_tensor **> weights() = 0;

    // The same for tables that the graphs read a few rows of.
    virtual std::vector<ggml_tensor **> tables() { return {}; }

    virtual void build(const DraftTensors & tensors, DraftGraph & graph) const = 0;

    const char * kind;      // for messages
    int64_t n_embd;         // H
    int64_t n_embd_tgt;     // T
    int64_t n_vocab_draft;  // D
    int64_t n_vocab;        // V
    int64_t n_head, n_head_kv, n_head_dim;
    int64_t n_layer;
    int64_t n_ctx_train;  // a row attends to at most this many
    int64_t n_trained;    // length of the longest training text, as far as it is known
    float norm_eps;
    float attention_scale = 0.0f;  // 0: 1 / sqrt(head)
    bool norm_output;              // the next step reads norm(x) instead of x
    DraftBlock block;

    // A row of a windowed layer attends to the last n_window slots, its own included.
    int32_t n_window = 0;
    std::vector<bool> windowed;  // per layer; empty: no layer is windowed

    std::vector<int32_t> states;  // states of the target that it reads: ascending boundaries, or FINAL_NORM alone

    // A row combines the states of a position with the token after it (a block draft reads no token). Its K and V have
    // the position `lead` later, and a sequence starts with `lead` rows of zeros.
    int32_t lead;

    ggml_backend_dev_t device;             // device that the layers were loaded to
    ggml_type weight_type;                 // type of their matrices, for messages
    ggml_tensor * output_norm;             // {H}
    ggml_tensor * output;                  // {H, D}
    ggml_tensor * output_scale = nullptr;  // {1}, or null
    ggml_tensor * tok_embd;                // {H, V}
    bool can_trim = true;                  // nothing but `output` has rows of the draft's vocabulary
    bool tied = false;                     // the head and the embeddings are the same weights
    ggml_tensor * tied_head = nullptr;     // {H, V}: the target's head, if it equals tok_embd; may be on another device
    DraftRope rope;
    std::vector<int32_t> d2t_id;  // draft id -> target id, D entries; empty when D = V

    int32_t slot_of(int32_t row) const { return row + lead; }  // slot of the row with the states of this target row
    // Number of rows that follow the given ones to draft n_steps tokens: the last given row drafts the first token of a
    // chain.
    int32_t n_more_rows(int32_t n_steps) const { return block.n_max > 0 ? block.n_rows(n_steps) : n_steps - 1; }
    bool is_windowed(size_t il) const { return !windowed.empty() && windowed[il]; }
    // True if the rows of its blocks have no states of the target and pass through the layers apart from those that do.
    bool has_own_block() const { return block.n_max > 0 && !block.follows_row; }
    int64_t n_states() const { return (int64_t) states.size(); }  // A
    int32_t target_id(int32_t draft_id) const { return d2t_id.empty() ? draft_id : d2t_id[draft_id]; }

  protected:
    // Returns true if the head was loaded from the tensor of the embeddings.
    static bool are_tied(const ggml_tensor * embeddings, const ggml_tensor * head);

    // Reads the vocabulary map of the draft's file (null: none). Needs n_vocab and n_vocab_draft.
    void read_d2t(const ggml_tensor * d2t);
};

}  // namespace eagle
