// A draft with a context of its own that proposes one token for each sequence in each decode.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "eagle_draft_params.h"
#include "eagle_small_head.h"
#include "llama-cpp.h"

namespace eagle {

// Result of a draft for one sequence: n_steps ids and probabilities (null: not wanted), and the number of tokens before
// the cumulative probability falls below p_min.
struct Proposal {
    llama_token * ids;
    float * probs;
    int32_t n_out = 0;
};

class StepModel {
  public:
    StepModel(const StepModel &) = delete;

    const SmallHead & head() const { return *head_; }
    const char * device() const;
    double bytes_read() const { return bytes_read_; }  // for each drafted token
    void note_used_tokens(const llama_token * ids, int32_t n) { head_->note_used_tokens(ids, n); }

    // Copies the logits of a step of the last draft for its first sequence: a number for each row of the head. Null:
    // not wanted. Throws EAGLE_ERR_ARGUMENT if the step was not drafted.
    void read_logits(int32_t step, float * logits) const;

  protected:
    struct Row {
        llama_token id;
        llama_seq_id seq;
        llama_pos pos;
        bool has_output;
    };

    const llama_model & model_;
    std::unique_ptr<SmallHead> head_;
    llama_context_ptr ctx_;  // its graphs read the head

    // Proposes tokens of `vocab` alone, which has no more than the draft.
    StepModel(const llama_model & draft, const llama_vocab & vocab, const DraftParams & params);
    ~StepModel() = default;

    // states: {n_embd} of each row, for a draft that reads them.
    void decode(const std::vector<Row> & rows, float * states = nullptr);

    // Drafts up to n_steps tokens. `evaluate` decodes a step and returns the row with the output of each proposal.
    // Stops after the step at which the cumulative probability of every proposal is below p_min.
    void draft(const std::vector<Proposal *> & proposals, int32_t n_steps, float p_min,
               const std::function<std::vector<int32_t>(int32_t step)> & evaluate);

  private:
    double bytes_read_;
    std::vector<float> logits_;  // of the last draft's first proposal: all rows of each step
};

}  // namespace eagle
