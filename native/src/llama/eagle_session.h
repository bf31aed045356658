// A target context and its draft, moving together: see eagle.h for what a round is.
#pragma once

#include <memory>
#include <vector>

#include "eagle.h"
#include "eagle_draft_engine.h"

namespace eagle {

class Session {
  public:
    Session(llama_context * ctx, const llama_model & draft, const eagle_session_params & params);
    ~Session();

    void reset();
    int32_t n_past() const { return n_past_; }
    int32_t n_draft_room() const;
    void eval(const llama_token * tokens, int32_t n);
    void trim(int32_t n_past);

    int32_t draft(llama_token id_last, int32_t n_max, float p_min, llama_token * ids, float * probs);
    void verify(const llama_token * ids, int32_t n);
    int32_t accept(llama_sampler * sampler, llama_token * ids);
    void commit(int32_t n_kept);

    const DraftEngine & engine() const { return engine_; }
    eagle_timings timings = {};

  private:
    // Rows whose features are known and that the draft has not taken in yet. Row i sits at position pos + i; its token
    // is the one at position pos + i + 1, so the last row has none until that one is known.
    struct Pending {
        std::vector<float> features;
        std::vector<llama_token> tokens;
        int32_t pos = 0;
        int32_t n = 0;
    };

    llama_context * ctx_;
    int32_t n_draft_max_;
    int32_t n_ctx_;
    int32_t n_batch_;
    DraftEngine engine_;
    int64_t width_;  // A*T
    bool recurrent_;
    int32_t n_past_ = 0;
    bool broken_ = false;             // a decode failed: only reset helps
    std::vector<llama_token> round_;  // rows of the pending round; empty: none
    Pending pending_;

    void require_ready() const;
    void require_room(int32_t n) const;
    void decode(const llama_token * tokens, int32_t n, bool all_logits);
    void append_pending(const llama_token * tokens, int32_t n);
    void take_pending(int32_t n);
    void drop_pending(int32_t n);
    llama_token greedy(int32_t row) const;
};

}  // namespace eagle
