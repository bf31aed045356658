// What every kind of drafter has, gathered once from what llama.cpp's loader has read: decoder layers over states of
// the target, a head, an embedding table. Its kinds are in eagle3/ and mtp/.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "eagle_draft_graph.h"
#include "ggml.h"
#include "llama.h"

struct llama_model;

namespace eagle {

struct DraftRope {
    int type;  // GGML_ROPE_TYPE_*
    int n_dims;
    int n_ctx_orig;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    ggml_tensor * factors;  // {n_dims/2} F32, or null

    // M-RoPE: which rotated pairs turn by time, height, width and a fourth part; type says in which order. All 0:
    // plain.
    std::array<int, GGML_MROPE_SECTIONS> sections = {};
    bool rest_is_time = false;    // the fourth part is the time, not 0: for pairs that the sections leave over
    bool pairs_adjacent = false;  // the weights' rows have a pair side by side

    bool has_sections() const { return sections[0] + sections[1] + sections[2] > 0; }
};

struct DraftModel {
    virtual ~DraftModel() = default;

    // Every weight that the graphs read, null where there is none. The engine replaces those that its backend cannot
    // reach by copies.
    virtual std::vector<ggml_tensor **> weights() = 0;

    virtual void build(const DraftTensors & tensors, DraftGraph & graph) const = 0;

    const char * kind;      // for messages
    int64_t n_embd;         // H
    int64_t n_embd_tgt;     // T
    int64_t n_vocab_draft;  // D
    int64_t n_vocab;        // V
    int64_t n_head, n_head_kv, n_head_dim;
    int64_t n_layer;
    int64_t n_ctx_train;  // positions beyond it are not drafted
    float norm_eps;
    bool norm_output;  // what is fed back is norm(x), not x

    // A row of a windowed layer attends to the last n_window slots, its own among them.
    int32_t n_window = 0;
    std::vector<bool> windowed;  // per layer; empty: none is

    std::vector<int32_t> states;  // of the target, ascending: boundaries, or FINAL_NORM alone (eagle_boundaries.h)

    // The row of a position's states takes the token after it. Its K and V are rotated and kept for `lead` positions
    // later; as many rows of zeros stand before a sequence's first states.
    int32_t lead;

    ggml_backend_dev_t device;             // where the layers were loaded to
    ggml_type weight_type;                 // of their matrices, for messages
    ggml_tensor * output_norm;             // {H}
    ggml_tensor * output;                  // {H, D}
    ggml_tensor * output_scale = nullptr;  // {1}, or null
    ggml_tensor * tok_embd;                // {H, V}
    bool tied = false;                     // the head's rows are the embeddings
    ggml_tensor * tied_head = nullptr;     // {H, V}: a head of the target's with these rows, perhaps on another device
    DraftRope rope;
    std::vector<int32_t> d2t_id;  // draft id -> target id, D entries; empty when D = V

    bool is_windowed(size_t il) const { return !windowed.empty() && windowed[il]; }
    int64_t n_states() const { return (int64_t) states.size(); }  // A
    int32_t target_id(int32_t draft_id) const { return d2t_id.empty() ? draft_id : d2t_id[draft_id]; }

  protected:
    // Whether a model's head was loaded from the tensor of its embeddings.
    static bool are_tied(const ggml_tensor * embeddings, const ggml_tensor * head);

    // The vocabulary map of the draft's file, null: it has none. n_vocab and n_vocab_draft are known.
    void read_d2t(const ggml_tensor * d2t);
};

// Whether the architecture is of a kind that we know.
bool is_known_draft(const llama_model & draft);

// The kind follows from the draft's architecture. Throws EAGLE_ERR_INCOMPATIBLE when it is none that we know, or does
// not fit the target.
std::unique_ptr<DraftModel> read_draft_model(const llama_model & draft, const llama_context & target);

}  // namespace eagle
