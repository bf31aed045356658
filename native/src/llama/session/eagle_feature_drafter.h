// Drafter that reads states of the target: the draft engine with an EAGLE-3 draft, an MTP head or a block draft.
#pragma once

#include "eagle_boundaries.h"
#include "eagle_draft_engine.h"
#include "eagle_draft_window.h"
#include "eagle_drafter.h"

namespace eagle {

class FeatureDrafter : public Drafter {
  public:
    FeatureDrafter(llama_context & ctx, const llama_model & draft, const DraftParams & params);

    const char * kind() const override { return engine_.model().kind; }
    const char * device() const override { return engine_.device(); }
    const char * notice() const override { return engine_.notice().c_str(); }
    double bytes_read() const override { return engine_.bytes_read(); }
    int64_t n_graphs() const override { return engine_.n_graphs(); }
    int32_t window() const override { return window_.now(); }
    void fix_window(int32_t n) override {
        window_.fix(n);
        engine_.set_window(n);
    }
    int64_t n_vocab_draft() const override { return engine_.model().n_vocab_draft; }
    llama_token target_id(int32_t draft_id) const override { return engine_.model().target_id(draft_id); }
    void read_step(int32_t step, float * logits, float * hidden) const override {
        engine_.read_step(step, logits, hidden);
    }
    int64_t n_embd_image() const override { return engine_.model().n_embd; }

    std::unique_ptr<Sequence> add_sequence(llama_seq_id) override;
    std::vector<ggml_tensor *> states_of_last_graph(int32_t n_rows) const override {
        return boundaries_.of_last_graph(n_rows);
    }
    void draft(std::vector<DraftTask> & tasks, int32_t n_steps, float p_min) override;

  private:
    // Tokens drafted after the same rows with several windows, until the text has them.
    struct Comparison {
        int32_t seq = -1, row = 0;  // of the first drafted token; seq -1: none
        int32_t window = 0;         // of the round
        std::vector<llama_token> ids;
        std::vector<int32_t> rivals;
        std::vector<llama_token> ids_of_rivals;  // one token of each, or a block of one
    };

    DraftEngine engine_;
    Boundaries boundaries_;
    DraftWindow window_;
    Comparison open_;
    int32_t n_sequences_ = 0;    // of the engine, in use
    int32_t n_comparisons_ = 0;  // so far

    void settle(const DraftRows & rows);
    bool draft_with_rivals(const DraftRows & rows, int32_t n_steps);
};

}  // namespace eagle
