// A target context and its draft, moving together: see eagle.h for what a round is.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "eagle.h"
#include "eagle_draft_engine.h"

namespace eagle {

constexpr uint32_t STATE_MAGIC = 0x45473301;

// Rows that wait for the next draft before they are taken in on their own: plain decode stretches stay cheap.
constexpr int32_t MAX_PENDING = 64;

// A saved state begins with this; then come the pending rows' tokens and features, then the draft's slots.
struct StateHeader {
    uint32_t magic = STATE_MAGIC;
    int32_t n_past = 0;
    int32_t first_slot = 0;
    int32_t end_slot = 0;
    int32_t pos = 0;  // of the pending rows' states; -1: the row of zeros before a sequence
    int32_t n = 0;
    int32_t n_tokens = 0;
    int32_t width = 0;

    int64_t token_bytes() const { return n_tokens * (int64_t) sizeof(llama_token); }
    int64_t feature_bytes() const { return (int64_t) n * width * (int64_t) sizeof(float); }

    // Could a session with n_past tokens have written it? A row's slot is `lead` after its position.
    bool is_sane(int32_t n_past_now, int64_t width_now, int64_t n_slots, int32_t lead) const {
        const int32_t slot = pos + lead;
        return magic == STATE_MAGIC && n_past == n_past_now && width == width_now && first_slot >= 0 &&
               first_slot <= slot && end_slot >= 0 && end_slot <= n_slots && slot >= 0 && n >= 0 && n <= MAX_PENDING &&
               pos == n_past - n && end_slot <= slot && n_tokens == std::max(0, n - 1);
    }
};

class Session {
  public:
    Session(llama_context * ctx, const llama_model & draft, const eagle_session_params & params);
    ~Session();

    void reset();
    int32_t n_past() const { return n_past_; }
    int32_t n_draft_room() const;
    void eval(const llama_token * tokens, int32_t n);
    void trim(int32_t n_past);

    int64_t state_size() const;
    void save_state(char * data, int64_t size) const;
    void load_state(const char * data, int64_t size, int32_t n_past);

    int32_t draft(llama_token id_last, int32_t n_max, float p_min, llama_token * ids, float * probs);
    void verify(const llama_token * ids, int32_t n);
    int32_t accept(llama_sampler * sampler, llama_token * ids);
    void commit(int32_t n_kept);
    void note(const llama_token * ids, int32_t n) { engine_.note(ids, n); }

    const DraftEngine & engine() const { return engine_; }
    eagle_timings timings = {};

  private:
    llama_context * ctx_;
    int32_t n_draft_max_;
    int32_t n_ctx_;
    int32_t n_batch_;
    int32_t n_ubatch_;
    DraftEngine engine_;
    int64_t width_;  // A*T: a row of target states
    bool recurrent_;
    int32_t n_past_ = 0;
    bool broken_ = false;             // a decode failed: only reset helps
    std::vector<llama_token> round_;  // rows of the pending round; empty: none

    // The rows in engine_.features() are pending: the last ones before n_past_, not yet taken in by the draft. Each
    // one's token is that of the next position, so the last row has none until that one is known.
    std::vector<llama_token> pending_tokens_;

    int32_t n_pending() const { return engine_.features().size(); }
    int32_t pending_pos() const { return n_past_ - n_pending(); }

    StateHeader state_header() const;
    int64_t state_size(const StateHeader & header) const;
    void release_boundaries();
    void require_ready() const;
    void require_room(int32_t n) const;
    void decode(const llama_token * tokens, int32_t n, int32_t first_output);
    void stage_features(int32_t n);
    void append_pending(const llama_token * tokens, int32_t n);
    void take_pending(int32_t n);
    void drop_pending(int32_t n);
};

}  // namespace eagle
