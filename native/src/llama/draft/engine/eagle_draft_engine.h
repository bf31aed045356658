// Drafts tokens for the sequences of a target context: one graph per round.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "eagle_draft_device.h"
#include "eagle_draft_graphs.h"
#include "eagle_draft_inputs.h"
#include "eagle_draft_model.h"
#include "eagle_draft_params.h"
#include "eagle_draft_rows.h"
#include "eagle_draft_sequence.h"
#include "eagle_draft_weights.h"

namespace eagle {

// Output of draft() for one part: n_steps entries each.
struct DraftOut {
    llama_token * ids;
    float * probs;
};

class DraftEngine {
  public:
    // Falls back to the CPU if the device of the draft's weights lacks an operation.
    DraftEngine(const llama_model & draft, const llama_context & target, const DraftParams & params);

    DraftEngine(const DraftEngine &) = delete;  // its parts refer to each other

    const DraftModel & model() const { return *model_; }
    int32_t n_slots() const { return params_.n_slots; }  // of each sequence's memory

    // Slots that a row attends to, its own included: at most widest(), which is the default.
    void set_window(int32_t n) { window_ = std::min(n, widest()); }
    int32_t widest() const { return (int32_t) std::min<int64_t>(params_.n_ctx, model_->n_ctx_train); }

    int64_t n_graphs() const { return graphs_->n_built(); }
    const char * device() const { return device_->name(); }
    // Reason for a fallback to the CPU; empty without one.
    const std::string & notice() const { return notice_; }

    // Bytes of weights that the draft reads for each drafted token.
    double bytes_read() const;

    // Sequence 0 exists from the start; adds another one and returns its number.
    int32_t add_sequence();
    DraftSequence & sequence(int32_t seq) { return *sequences_[seq]; }
    const DraftSequence & sequence(int32_t seq) const { return *sequences_[seq]; }

    // Empties the sequence's memory and features, except for the rows of zeros before a sequence's first row.
    void clear(int32_t seq);

    // Gives the tokens rows in a trimmed head.
    void note_used_tokens(const llama_token * ids, int32_t n) { weights_->note_used_tokens(ids, n); }

    // Evaluates the rows and appends them to the draft's memory.
    void append(const DraftRows & rows);

    // Appends the rows and drafts up to n_steps tokens after the last row of each part; `out` receives target ids.
    // Parts are of different sequences, and one graph computes them all. For one step of a chain they may also be the
    // same rows with several windows. On a CPU the graph stops at the step where the cumulative probability of every
    // part is below p_min. Returns the number of drafted tokens, that step included.
    int32_t draft(const std::vector<DraftRows> & parts, int32_t n_steps, float p_min,
                  const std::vector<DraftOut> & out);

    // Results of the last draft() for its first part: logits over the draft's vocabulary {D} and the hidden state that
    // the next step read {H}. Null: not wanted.
    void read_step(int32_t step, float * logits, float * hidden) const;

  private:
    const llama_model & draft_;
    DraftParams params_;
    std::unique_ptr<DraftModel> model_;
    std::string notice_;
    std::unique_ptr<DraftDevice> device_;
    std::unique_ptr<DraftWeights> weights_;
    DraftSequences sequences_;
    DraftTensors tensors_;
    std::unique_ptr<DraftGraphs> graphs_;
    std::unique_ptr<DraftInputs> inputs_;
    std::weak_ptr<const DraftGraph> last_drafted_;  // empty once the cache has dropped it
    int32_t n_drafted_ = 0;                         // steps of it that were computed
    bool slides_ = false;
    int32_t window_;

    void place_on(ggml_backend_dev_t device);
    const ggml_tensor * first_unsupported_node() const;
    DraftShape shape_of(const std::vector<DraftRows> & parts, int32_t n_steps);
    int32_t end_slot(const DraftRows & rows, int32_t n_steps) const;
    int32_t last_covered(int32_t end) const;
    int32_t n_covered(const DraftRows & rows, int32_t n_steps) const;
    int32_t window_of(const DraftRows & rows) const { return rows.window > 0 ? rows.window : window_; }
    void note_sliding(int32_t end_slot);
    DraftRows append_all_but_last(DraftRows rows);
    void read_drafts(const DraftGraph & graph, const std::vector<DraftOut> & out) const;
};

}  // namespace eagle
