// A small language model as a drafter. Its context has a memory of its own, which holds the text of each sequence and
// the tokens that were drafted after it. The texts decide what remains: a memory is truncated to the tokens that it
// shares with the text, and only the others are evaluated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eagle_step_model.h"

namespace eagle {

class SmallModel : public StepModel {
  public:
    // A sequence to draft for, and its text with the last sampled token.
    struct Part {
        int32_t seq;
        std::vector<llama_token> text;
        Proposal out;
    };

    // Creates a context for n_seq sequences and drafts of up to n_draft_max tokens. Throws EAGLE_ERR_INCOMPATIBLE if
    // the model cannot draft for the target, EAGLE_ERR_MEMORY if there is no memory for the context.
    SmallModel(const llama_model & draft, const llama_context & target, const DraftParams & params, int32_t n_seq,
               int32_t n_draft_max);

    int32_t n_ctx() const { return n_ctx_; }  // tokens of a text, to which a draft is added
    int32_t n_draft_max() const { return n_draft_max_; }
    const std::string & notice() const { return notice_; }
    void note_sliding();  // a text is longer than n_ctx
    bool knows(llama_token id) const { return id >= 0 && id < n_known_; }

    // Returns the number of the text's tokens that the sequence's memory does not hold.
    int32_t n_missing(int32_t seq, const std::vector<llama_token> & text) const;
    // Evaluates those tokens.
    void evaluate(int32_t seq, const std::vector<llama_token> & text);

    // Drafts up to n_steps tokens after each text, in one decode for each step. Parts ascend by sequence; texts are not
    // empty and have at most n_ctx tokens and the last sampled one.
    void draft(std::vector<Part> & parts, int32_t n_steps, float p_min);

    // Truncates the memory to the tokens that it shares with the text, and returns the size of its state.
    int64_t state_size(int32_t seq, const std::vector<llama_token> & text);
    void save_state(int32_t seq, char * data, int64_t size);
    // `text`: the tokens of the saved memory. Returns false if the data is not valid; then the memory is empty.
    bool load_state(int32_t seq, const char * data, int64_t size, std::vector<llama_token> text);

    const std::vector<llama_token> & tokens(int32_t seq) const { return memory_[seq]; }

  private:
    // A token at the end of a sequence's memory.
    struct Added {
        llama_token id;
        int32_t seq;
        bool has_output;
    };

    int32_t n_ctx_;
    int32_t n_draft_max_;
    int32_t n_batch_;
    int32_t n_known_;
    bool recurrent_;
    std::string notice_;
    std::vector<std::vector<llama_token>> memory_;  // by sequence: the tokens of its rows

    void make_context(const llama_context & target, const DraftParams & params, int32_t n_seq);
    void truncate(int32_t seq, int32_t n);
    void clear(int32_t seq);
    void append(const std::vector<Added> & tokens);
    std::vector<int32_t> decode_texts(const std::vector<Part> & parts);
    std::vector<int32_t> decode_drafted(const std::vector<Part> & parts, int32_t n_drafted);
};

}  // namespace eagle
