// Drafter that reads states of the target: the draft engine with an EAGLE-3 draft, an MTP head or a block draft.
#pragma once

#include "eagle_boundaries.h"
#include "eagle_draft_engine.h"
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
    DraftEngine engine_;
    Boundaries boundaries_;
    int32_t n_sequences_ = 0;  // of the engine, in use
};

}  // namespace eagle
