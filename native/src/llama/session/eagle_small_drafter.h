// Drafter that is a small model of the target's family (draft/small/eagle_small_model.h): it reads the text alone.
#pragma once

#include "eagle_drafter.h"
#include "eagle_sequence.h"
#include "eagle_small_model.h"

namespace eagle {

// A sequence, and the text of its rows.
class SmallSequence : public Sequence {
  public:
    SmallSequence(SmallModel & model, int32_t seq) : model_(model), seq_(seq) {}

    int32_t seq() const { return seq_; }

    void clear() override;
    void skip_to(int32_t n_past) override;
    void stage(const std::vector<ggml_tensor *> &, int32_t, int32_t) override {}
    void append(const llama_token * tokens, int32_t n) override;
    void append_image(const float * values, int64_t width, const std::vector<llama_pos> & parts,
                      llama_pos end) override;
    void append_unread(int32_t n) override;
    void truncate(int32_t n_past) override;
    void shift(int32_t n) override;
    void set_text(const llama_token * tokens, int32_t n, int32_t first) override;
    int32_t room() const override { return model_.n_draft_max(); }
    void note_used_tokens(const llama_token * ids, int32_t n) override { model_.note_used_tokens(ids, n); }

    int64_t state_size() const override;
    void save_state(char * data) const override;
    void load_state(const char * data, int64_t size, int32_t n_past) override;

    // Returns the text that the model reads: its last tokens that fit.
    const std::vector<llama_token> & text() const;

  private:
    static constexpr llama_token UNKNOWN = -1;  // a row of an image, or one that another session has evaluated

    SmallModel & model_;
    int32_t seq_;
    std::vector<llama_token> rows_;  // by row
    mutable std::vector<llama_token> text_;

    int64_t own_size() const;
};

class SmallDrafter : public Drafter {
  public:
    SmallDrafter(llama_context & ctx, const llama_model & draft, const DraftParams & params, int32_t n_seq,
                 int32_t n_draft_max)
        : model_(draft, ctx, params, n_seq, n_draft_max) {}

    const char * kind() const override { return "small model"; }
    const char * device() const override { return model_.device(); }
    const char * notice() const override { return model_.notice().c_str(); }
    double bytes_read() const override { return model_.bytes_read(); }
    int64_t n_vocab_draft() const override { return model_.head().n_rows(); }
    llama_token target_id(int32_t draft_id) const override { return model_.head().token(draft_id); }
    void read_step(int32_t step, float * logits, float * hidden) const override;

    std::unique_ptr<Sequence> add_sequence(llama_seq_id) override {
        return std::make_unique<SmallSequence>(model_, n_sequences_++);
    }
    void draft(std::vector<DraftTask> & tasks, int32_t n_steps, float p_min) override;

  private:
    SmallModel model_;
    int32_t n_sequences_ = 0;
};

}  // namespace eagle
