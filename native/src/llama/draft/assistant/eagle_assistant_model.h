// Gemma 4's assistant as a drafter: a few layers that attend to the target's own keys and values, and have none. A step
// reads a token and the state before the head: the target's for the first token, then its own projected one. All
// drafted tokens have the position of the first. The graph is llama.cpp's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "eagle_draft_params.h"
#include "eagle_small_head.h"
#include "llama-cpp.h"

namespace eagle {

class AssistantModel {
  public:
    // A sequence of the target, its next position, the token there, and the state {n_embd} of the row before. Output:
    // n_steps entries; probs may be null.
    struct Part {
        llama_seq_id seq;
        llama_pos pos;
        llama_token id_last;
        const float * state;
        llama_token * ids;
        float * probs;
    };

    // Throws EAGLE_ERR_INCOMPATIBLE if the draft does not fit the target, EAGLE_ERR_MEMORY if there is no memory for
    // its context.
    AssistantModel(const llama_model & draft, llama_context & target, const DraftParams & params);

    AssistantModel(const AssistantModel &) = delete;

    int64_t n_embd() const { return n_embd_; }  // of the target
    const SmallHead & head() const { return *head_; }
    const char * device() const;
    double bytes_read() const { return bytes_read_; }  // for each drafted token
    void note_used_tokens(const llama_token * ids, int32_t n) { head_->note_used_tokens(ids, n); }

    // Drafts up to n_steps tokens for each part, in one decode for each step. Stops after the step at which the
    // cumulative probability of every part is below p_min. Returns the number of steps.
    int32_t draft(const std::vector<Part> & parts, int32_t n_steps, float p_min);

    // Copies results of a step of the last draft for its first part: a logit for each row of the head, and the state
    // that the next step reads. Null: not wanted.
    void read_step(int32_t step, float * logits, float * state) const;

  private:
    const llama_model & model_;
    std::unique_ptr<SmallHead> head_;
    llama_context_ptr ctx_;  // its graphs read the head and the target's memory
    int64_t n_embd_;
    double bytes_read_;
    std::vector<float> states_;                           // by part: input of the next step
    std::vector<float> drafted_logits_, drafted_states_;  // of the last draft's first part: all rows of each step

    void make_context(llama_context & target, const DraftParams & params);
    void decode(const std::vector<Part> & parts, int32_t step);
    void read_states(size_t n_parts);
};

}  // namespace eagle
