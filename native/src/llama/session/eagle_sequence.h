// One sequence of a target: the number of its rows, their positions, and the draft's part of them. The draft is
// optional. A sequence has no access to the target's context: its owner decodes the target and passes the states on.
#pragma once

#include <algorithm>
#include <vector>

#include "eagle.h"
#include "eagle_draft_engine.h"

namespace eagle {

constexpr uint32_t STATE_MAGIC = 0x45473302;

// More pending rows than this are evaluated without a draft. Fewer wait for the next draft, so that plain rounds are
// cheap.
constexpr int32_t MAX_PENDING = 64;

constexpr int32_t MAX_SLOT = 1 << 30;

// Header of a saved state. The positions of images, the pending tokens, the pending features and the draft's slots
// follow.
struct StateHeader {
    uint32_t magic = STATE_MAGIC;
    int32_t n_past = 0;
    int32_t first_slot = 0;
    int32_t end_slot = 0;
    int32_t pos = 0;  // first pending row; -1: the row of zeros before a sequence
    int32_t n = 0;    // pending rows
    int32_t n_tokens = 0;
    int32_t width = 0;
    int32_t n_positions = 0;  // numbers of RowPositions::save()

    int64_t position_bytes() const { return n_positions * (int64_t) sizeof(int32_t); }
    int64_t token_bytes() const { return n_tokens * (int64_t) sizeof(llama_token); }
    int64_t feature_bytes() const { return (int64_t) n * width * (int64_t) sizeof(float); }

    // Rows that were shifted out. A row's slot is `lead` after its position otherwise.
    int32_t n_removed(int32_t lead) const { return end_slot - pos - lead; }

    // Returns true if a sequence with n_past tokens can have written it.
    // Without a draft the width is 0, and there are no slots and no pending rows.
    bool is_valid(int32_t n_past_now, int64_t width_now, int64_t n_slots, int32_t lead) const {
        const int32_t slot = pos + lead, max_pending = width_now > 0 ? MAX_PENDING : 0;
        return magic == STATE_MAGIC && n_past == n_past_now && width == width_now && first_slot >= 0 &&
               first_slot <= end_slot && end_slot - first_slot <= n_slots && slot >= 0 && n >= 0 &&
               (width_now == 0 || (end_slot >= slot && end_slot < MAX_SLOT)) && n <= max_pending && pos == n_past - n &&
               n_tokens == std::max(0, n - 1) && n_positions >= 0;
    }
};

class Sequence {
  public:
    // Uses sequence `seq` of the engine, which must outlive it. engine null: no draft.
    explicit Sequence(DraftEngine * engine = nullptr, int32_t seq = 0);
    virtual ~Sequence() = default;

    int32_t n_past() const { return n_past_; }

    // Forgets all rows.
    virtual void clear();
    // Forgets all rows and continues after n_past unknown tokens.
    virtual void skip_to(int32_t n_past);

    // Copies `n` rows of states of the target from row `first` on; each tensor is {T, rows}. Replaces staged rows.
    virtual void stage(const std::vector<ggml_tensor *> & states, int32_t first, int32_t n);

    // Appends the first n staged rows, with tokens[n].
    virtual void append(const llama_token * tokens, int32_t n);

    // Appends n staged rows of an image, which the target read from `values` [n, width]. Their positions are parts
    // [n, RowPositions::N_PARTS], and the position of the next row is `end`.
    virtual void append_image(const float * values, int64_t width, const std::vector<llama_pos> & parts, llama_pos end);

    // Appends n staged rows of an image at consecutive positions, for a drafter that does not read images.
    virtual void append_unread(int32_t n) { n_past_ += n; }

    const RowPositions & positions() const { return positions_; }

    // Removes n rows somewhere before the pending ones; the rows after them are n positions earlier now. Not for
    // images.
    virtual void shift(int32_t n);

    // Keeps the first n_past rows.
    virtual void truncate(int32_t n_past);

    // Reports that the rows are of tokens[n], with images between them. The draft has evaluated those from `first` on,
    // and ignores its rows of other texts.
    virtual void set_text(const llama_token * tokens, int32_t n, int32_t first) {
        (void) tokens, (void) n;
        draft().first_slot = first == 0 ? 0 : slot_of(first);
    }

    // Longest draft; 0 if no row is pending. INT32_MAX if there is no limit, as without a draft model.
    virtual int32_t room() const;

    // Returns the pending rows, which the draft starts from, with id_last as the last token. Valid until the sequence
    // changes.
    DraftRows rows_to_draft(llama_token id_last);
    // Drops these rows after the draft. Returns the number of tokens before the cumulative probability falls below
    // p_min.
    int32_t finish_draft(const float * probs, int32_t n, float p_min);
    virtual void note_used_tokens(const llama_token * ids, int32_t n);

    virtual int64_t state_size() const { return state_size(state_header()); }
    virtual void save_state(char * data) const;
    // data null: same as skip_to(). Throws EAGLE_ERR_INCOMPATIBLE and changes nothing if the data is not from
    // save_state().
    virtual void load_state(const char * data, int64_t size, int32_t n_past);

  private:
    DraftEngine * engine_;
    int32_t seq_;
    int64_t width_ = 0;  // A*T: floats of a row of target states
    int32_t n_past_ = 0;
    int32_t n_removed_ = 0;  // rows that were shifted out: later rows keep their slots and the positions of these
    RowPositions positions_;

    // The rows in features() are pending: the last rows before n_past_, which the draft has not evaluated yet. Each is
    // paired with the token of the next row, so the last pending row has no token until that one is known.
    std::vector<llama_token> pending_tokens_;
    std::vector<llama_token> tokens_to_draft_;

    DraftSequence & draft() { return engine_->sequence(seq_); }
    const DraftSequence & draft() const { return static_cast<const DraftEngine *>(engine_)->sequence(seq_); }
    FeatureStore & features() { return draft().features; }
    const FeatureStore & features() const { return draft().features; }
    int32_t slot_of(int32_t row) const { return engine_->model().slot_of(row + n_removed_); }
    int32_t n_pending() const { return engine_ ? features().size() : 0; }
    int32_t pending_row() const { return n_past_ - n_pending(); }

    StateHeader state_header() const;
    int64_t state_size(const StateHeader & header) const;
    StateHeader read_header(const char * data, int64_t size, int32_t n_past) const;
    void evaluate(const DraftRows & rows);
    void evaluate_pending(int32_t n);
    void drop_pending(int32_t n);
};

}  // namespace eagle
