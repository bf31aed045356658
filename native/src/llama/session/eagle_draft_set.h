// Drafts for the sequences of a context, which passes its states to them itself (eagle_drafts.h).
#pragma once

#include <memory>
#include <vector>

#include "eagle_drafter.h"
#include "eagle_drafts.h"
#include "eagle_sequence.h"
#include "eagle_ubatch_listener.h"

namespace eagle {

class DraftSet : public eagle_ubatch_listener {
  public:
    DraftSet(llama_context * ctx, const llama_model & draft, const eagle_session_params & params, int32_t n_seq);
    ~DraftSet() override;

    const Drafter & drafter() const { return *drafter_; }
    int64_t n_ctx() const;    // of each sequence
    int32_t n_vocab() const;  // of the target
    int32_t n_seq() const { return (int32_t) slots_.size(); }

    void decoded(const llama_ubatch & ubatch) override;
    void set_text(llama_seq_id seq, const llama_token * tokens, int32_t n);
    // Drafts for all requests in one graph.
    void propose(eagle_draft_request * requests, int32_t n, float p_min);

    int64_t state_size(llama_seq_id seq, llama_pos pos);
    void save_state(llama_seq_id seq, char * data, int64_t size) const;
    void load_state(llama_seq_id seq, const char * data, int64_t size, llama_pos pos);

  private:
    struct Slot {
        std::unique_ptr<Sequence> rows;  // null until the first token
        std::vector<llama_token> text;   // per row: the token that the draft has evaluated, UNKNOWN or IMAGE
    };

    static constexpr llama_token UNKNOWN = -1;  // the draft has not evaluated the row
    static constexpr llama_token IMAGE = -2;

    struct Run;  // consecutive rows of one sequence in a ubatch

    llama_context * ctx_;
    std::unique_ptr<Drafter> drafter_;
    std::vector<Slot> slots_;
    bool warned_ = false;

    Slot & slot(llama_seq_id seq);
    static void shift(Slot & slot, const llama_token * tokens, int32_t n);
    std::vector<eagle_draft_request *> ready_requests(eagle_draft_request * requests, int32_t n);
    void draft_all(const std::vector<eagle_draft_request *> & ready, float p_min);
    void append_all(const llama_ubatch & ubatch);
    void append(const Run & run, const std::vector<ggml_tensor *> & states);
    void append_tokens(Sequence & rows, const Run & run, const std::vector<ggml_tensor *> & states);
    void append_image(Sequence & rows, const Run & run, const std::vector<ggml_tensor *> & states);
};

}  // namespace eagle
