// The weights of a draft on its device: copies of those that the device cannot read, the table of token embeddings, and
// the trimmed head.
#pragma once

#include <memory>

#include "eagle_draft_device.h"
#include "eagle_draft_model.h"
#include "eagle_draft_params.h"
#include "eagle_following_head.h"

namespace eagle {

class DraftWeights {
  public:
    // Replaces weights in `model`, which was read from `draft`. The references must outlive the object.
    DraftWeights(DraftModel & model, const llama_model & draft, const DraftParams & params, DraftDevice & device);

    const EmbeddingTable & embeddings() const { return embeddings_; }

    // Gives the tokens rows in a trimmed head.
    void note_used_tokens(const llama_token * ids, int32_t n);

  private:
    DraftModel & model_;
    const llama_model & draft_;
    const DraftParams & params_;
    DraftDevice & device_;
    ggml_context_ptr ctx_;
    std::unique_ptr<FollowingHead> trimmed_head_;  // null: the model's own head
    EmbeddingTable embeddings_;

    void trim_head();
    void copy_to_device(ggml_tensor *& weight);
    void make_embeddings();
    void make_index();
    void copy_embeddings();
    void update_embedding(int32_t draft_id);
    WeightRows open(const ggml_tensor & weight) const;
    const char * path_of(const ggml_tensor & weight) const;
};

}  // namespace eagle
