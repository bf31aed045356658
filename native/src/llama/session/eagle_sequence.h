// One sequence of a target: the number of its rows, their positions, and what a draft holds of them. A draft is
// optional. A sequence knows no target context: its owner decodes the target and passes the states on.
#pragma once

#include <algorithm>
#include <vector>

#include "eagle.h"
#include "eagle_draft_engine.h"

namespace eagle {

constexpr uint32_t STATE_MAGIC = 0x45473302;

// Rows that wait for the next draft before they are taken in on their own: plain decode stretches stay cheap.
constexpr int32_t MAX_PENDING = 64;

// A saved state begins with this; then come the places of image rows, the pending rows' tokens and features, then the
// draft's slots.
struct StateHeader {
    uint32_t magic = STATE_MAGIC;
    int32_t n_past = 0;
    int32_t first_slot = 0;
    int32_t end_slot = 0;
    int32_t pos = 0;  // first row whose states are pending; -1: the row of zeros before a sequence
    int32_t n = 0;
    int32_t n_tokens = 0;
    int32_t width = 0;
    int32_t n_placed = 0;  // numbers that say where the rows of images stand

    int64_t placed_bytes() const { return n_placed * (int64_t) sizeof(int32_t); }
    int64_t token_bytes() const { return n_tokens * (int64_t) sizeof(llama_token); }
    int64_t feature_bytes() const { return (int64_t) n * width * (int64_t) sizeof(float); }

    // Could a sequence with n_past tokens have written it? A row's slot is `lead` after its position. Without a draft
    // the width is 0, and there are no slots and no pending rows.
    bool is_sane(int32_t n_past_now, int64_t width_now, int64_t n_slots, int32_t lead) const {
        const int32_t slot = pos + lead, max_pending = width_now > 0 ? MAX_PENDING : 0;
        return magic == STATE_MAGIC && n_past == n_past_now && width == width_now && first_slot >= 0 &&
               first_slot <= slot && end_slot >= 0 && end_slot <= n_slots && slot >= 0 && n >= 0 && n <= max_pending &&
               pos == n_past - n && end_slot <= slot && n_tokens == std::max(0, n - 1) && n_placed >= 0;
    }
};

class Sequence {
  public:
    // `seq` of the engine, which outlives it. engine null: there is no draft.
    explicit Sequence(DraftEngine * engine = nullptr, int32_t seq = 0);

    int32_t n_past() const { return n_past_; }

    // Before the first token; after n_past tokens of which nothing is known.
    void restart();
    void resume(int32_t n_past);

    // Copies states of the target: each tensor {T, rows}, `n` rows of it from `first` on. Those staged before are lost.
    void stage(const std::vector<ggml_tensor *> & states, int32_t first, int32_t n);

    // The first n staged rows are kept; tokens[n] are theirs.
    void keep(const llama_token * tokens, int32_t n);

    // The same with rows of an image, n of them, which the target read from `values` [n, width]: parts [n,
    // RowPositions::N_PARTS] say where they stand, and the row after them stands at `end`.
    void keep_embedded(const float * values, int64_t width, const std::vector<llama_pos> & parts, llama_pos end);

    // Where the target's rows stand.
    const RowPositions & positions() const { return positions_; }

    // Keeps the first n_past rows.
    void trim(int32_t n_past);

    // The rows before position `first` are not seen any more, those from there on are.
    void see_from(int32_t first) { engine_->forget_slots(seq_, first == 0 ? 0 : engine_->slot_of(first)); }

    // Longest draft that the draft's memory has room for; 0 when no row waits. INT32_MAX without a draft.
    int32_t room() const;

    // The rows to draft from, id_last among their tokens: valid until the sequence changes. Then what came of it: the
    // tokens before the one that makes the draft less probable than p_min.
    DraftRows rows_to_draft(llama_token id_last);
    int32_t drafted(const float * probs, int32_t n, float p_min);
    void note(const llama_token * ids, int32_t n);

    int64_t state_size() const { return state_size(state_header()); }
    void save_state(char * data) const;
    // data null: as resume(). Throws EAGLE_ERR_INCOMPATIBLE, and nothing is changed, for what it has not saved.
    void load_state(const char * data, int64_t size, int32_t n_past);

  private:
    DraftEngine * engine_;
    int32_t seq_;
    int64_t width_ = 0;  // A*T: a row of target states
    int32_t n_past_ = 0;
    RowPositions positions_;  // of these rows

    // The rows in features() are pending: the last ones before n_past_, not yet taken in by the draft. Each
    // one's token is that of the next row, so the last row has none until that one is known.
    std::vector<llama_token> pending_tokens_;
    std::vector<llama_token> tokens_to_draft_;

    FeatureStore & features() { return engine_->features(seq_); }
    const FeatureStore & features() const { return static_cast<const DraftEngine *>(engine_)->features(seq_); }
    int32_t n_pending() const { return engine_ ? features().size() : 0; }
    int32_t pending_row() const { return n_past_ - n_pending(); }

    StateHeader state_header() const;
    int64_t state_size(const StateHeader & header) const;
    StateHeader read_header(const char * data, int64_t size, int32_t n_past) const;
    void take(const DraftRows & rows);
    void take_pending(int32_t n);
    void drop_pending(int32_t n);
};

}  // namespace eagle
