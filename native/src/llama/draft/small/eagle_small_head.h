// A small model's head over a part of the vocabulary that follows the text (draft/eagle_following_head.h). It takes the
// place of the loaded model's own head while the object exists, so the graphs of llama.cpp read it. The logits then
// have a number for each row, not for each token.
#pragma once

#include <memory>

#include "eagle_draft_model.h"
#include "eagle_draft_params.h"
#include "eagle_following_head.h"

namespace eagle {

class SmallHead {
  public:
    // Takes the whole head if params.n_vocab_draft is 0 or not smaller, or if the model adds a number to each token's
    // logit. Proposes the first n_vocab tokens alone.
    SmallHead(const llama_model & draft, const llama_vocab & vocab, int32_t n_vocab, const DraftParams & params);
    ~SmallHead();
    SmallHead(const SmallHead &) = delete;

    int32_t n_rows() const { return (int32_t) rows_.n_vocab_draft; }
    llama_token token(int32_t row) const { return rows_.target_id(row); }
    double bytes_saved() const;  // for each drafted token

    // Returns the likeliest token of a row of logits, and its probability (null: not wanted). Throws EAGLE_ERR_COMPUTE
    // if the logits are no numbers.
    llama_token best(const float * logits, float * prob) const;

    // Gives the tokens rows; others than the first n_vocab are ignored.
    void note_used_tokens(const llama_token * ids, int32_t n);

  private:
    // The head as the part of a draft model that FollowingHead reads and replaces.
    struct Rows : DraftModel {
        std::vector<ggml_tensor **> weights() override { return {&output}; }
        void build(const DraftTensors &, DraftGraph &) const override {}
    };

    llama_model & draft_;
    ggml_tensor * whole_;
    Rows rows_;
    std::unique_ptr<FollowingHead> following_;  // null: the whole head
};

}  // namespace eagle
