// Drafter that is an assistant of Gemma 4 (draft/assistant/eagle_assistant_model.h): it reads the target's memory and
// the state of the last row.
#pragma once

#include "eagle_assistant_model.h"
#include "eagle_boundaries.h"
#include "eagle_drafter.h"
#include "eagle_sequence.h"

namespace eagle {

// A sequence of the target, and the states of its last rows.
class AssistantSequence : public Sequence {
  public:
    AssistantSequence(AssistantModel & model, llama_seq_id seq) : model_(model), seq_(seq) {}

    llama_seq_id seq() const { return seq_; }
    // Null: the state of the last row is unknown.
    const float * state() const { return states_.empty() ? nullptr : &states_[states_.size() - width()]; }

    void clear() override;
    void skip_to(int32_t n_past) override;
    void stage(const std::vector<ggml_tensor *> & states, int32_t first, int32_t n) override;
    void append(const llama_token * tokens, int32_t n) override;
    void append_image(const float * values, int64_t width, const std::vector<llama_pos> & parts,
                      llama_pos end) override;
    void append_unread(int32_t n) override;
    void truncate(int32_t n_past) override;
    void set_text(const llama_token *, int32_t, int32_t) override {}  // the memory is the target's
    int32_t room() const override { return state() ? INT32_MAX : 0; }
    void note_used_tokens(const llama_token * ids, int32_t n) override { model_.note_used_tokens(ids, n); }

    int64_t state_size() const override;
    void save_state(char * data) const override;
    void load_state(const char * data, int64_t size, int32_t n_past) override;

  private:
    AssistantModel & model_;
    llama_seq_id seq_;
    std::vector<float> staged_;  // of the last rows of a decode
    int32_t n_staged_ = 0;       // rows of that decode
    std::vector<float> states_;  // of the last rows

    size_t width() const { return (size_t) model_.n_embd(); }
    void keep_staged(int32_t n);
};

class AssistantDrafter : public Drafter {
  public:
    AssistantDrafter(llama_context & ctx, const llama_model & draft, const DraftParams & params)
        : model_(draft, ctx, params), boundaries_(ctx, ids_) {}

    const char * kind() const override { return "assistant"; }
    const char * device() const override { return model_.device(); }
    double bytes_read() const override { return model_.bytes_read(); }
    int64_t n_vocab_draft() const override { return model_.head().n_rows(); }
    llama_token target_id(int32_t draft_id) const override { return model_.head().token(draft_id); }
    void read_step(int32_t step, float * logits, float * hidden) const override {
        model_.read_logits(step, logits);
        if (hidden) {
            model_.read_state(step, hidden);
        }
    }

    std::unique_ptr<Sequence> add_sequence(llama_seq_id seq) override {
        return std::make_unique<AssistantSequence>(model_, seq);
    }
    std::vector<ggml_tensor *> states_of_last_graph(int32_t n_rows) const override {
        return boundaries_.of_last_graph(n_rows);
    }
    void draft(std::vector<DraftTask> & tasks, int32_t n_steps, float p_min) override;

  private:
    AssistantModel model_;
    const std::vector<int32_t> ids_ = {FINAL_NORM};
    Boundaries boundaries_;
};

}  // namespace eagle
