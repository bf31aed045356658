// Gemma 4's assistant as a drafter: a few layers that attend to the target's own keys and values, and have none. A step
// reads a token and the state before the head: the target's for the first token, then its own projected one. All
// drafted tokens have the position of the first. The graph is llama.cpp's.
#pragma once

#include <cstdint>
#include <vector>

#include "eagle_step_model.h"

namespace eagle {

class AssistantModel : public StepModel {
  public:
    // A sequence of the target, its next position, the token there, and the state {n_embd} of the row before.
    struct Part {
        llama_seq_id seq;
        llama_pos pos;
        llama_token id_last;
        const float * state;
        Proposal out;
    };

    // Throws EAGLE_ERR_INCOMPATIBLE if the draft does not fit the target, EAGLE_ERR_MEMORY if there is no memory for
    // its context.
    AssistantModel(const llama_model & draft, llama_context & target, const DraftParams & params);

    int64_t n_embd() const { return n_embd_; }  // of the target

    // Drafts up to n_steps tokens for each part, in one decode for each step.
    void draft(std::vector<Part> & parts, int32_t n_steps, float p_min);

    // Copies the state {n_embd} that the step after a drafted one reads.
    void read_state(int32_t step, float * state) const;

  private:
    int64_t n_embd_;
    std::vector<float> states_;          // by part: input of the next step
    std::vector<float> drafted_states_;  // of the last draft's first part, by step

    void make_context(llama_context & target, const DraftParams & params);
    std::vector<int32_t> evaluate(const std::vector<Part> & parts, int32_t step);
};

}  // namespace eagle
