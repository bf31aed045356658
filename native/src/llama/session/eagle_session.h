// A session on sequence 0 of a target context, with or without a draft (eagle.h).
#pragma once

#include <memory>
#include <vector>

#include "eagle.h"
#include "eagle_drafter.h"
#include "eagle_progress.h"
#include "eagle_sequence.h"

namespace eagle {

// Type of the K and V memory of drafts that this thread creates; tests change it (eagle_testing.h).
extern thread_local ggml_type draft_kv_type;

// Options of a draft for each sequence of the context.
DraftParams draft_params(const llama_context * ctx, const eagle_session_params & params);

// Rows of an image.
struct EmbeddedRows {
    const float * values;  // [n, n_embd_inp of the target]
    int32_t n;
    const llama_pos *
        parts;      // [RowPositions::N_PARTS, n]: time, height, width, relative to the position of the next row
    int32_t n_pos;  // number of positions that the image occupies
};

class Session {
  public:
    // draft null: the session verifies tokens that the caller proposes.
    Session(llama_context * ctx, const llama_model * draft, const eagle_session_params & params);
    ~Session();

    void reset();
    int32_t n_past() const { return rows_->n_past(); }
    int32_t n_draft_room() const;
    void eval(const llama_token * tokens, int32_t n);
    void eval_embeddings(const EmbeddedRows & rows);
    void trim(int32_t n_kept);

    int64_t state_size() const { return rows_->state_size(); }
    void save_state(char * data, int64_t size) const;
    void load_state(const char * data, int64_t size, int32_t n_past);

    // Requires a draft model.
    int32_t draft(llama_token id_last, int32_t n_max, float p_min, llama_token * ids, float * probs);
    void verify(const llama_token * ids, int32_t n);
    void commit(int32_t n_kept);
    void note_used_tokens(const llama_token * ids, int32_t n) { rows_->note_used_tokens(ids, n); }

    // Null without a draft.
    const Drafter * drafter() const { return drafter_.get(); }
    Drafter * drafter() { return drafter_.get(); }
    int32_t n_vocab() const;
    eagle_timings timings = {};

  private:
    llama_context * ctx_;
    int32_t n_draft_max_;
    int32_t n_ctx_;
    int32_t n_batch_;
    int32_t n_window_;  // sliding window of the target's attention; 0: none
    bool recurrent_;
    int32_t n_piece_;                   // maximum number of tokens in a decode
    std::unique_ptr<Drafter> drafter_;  // null: no draft
    std::unique_ptr<Sequence> rows_;
    Progress progress_;
    bool broken_ = false;             // after a failed decode, until reset
    std::vector<llama_token> round_;  // rows of the pending round; empty: no round

    void require_fitting_context() const;
    void require_ready() const;
    void require_room(int32_t n) const;
    void require_parts(const EmbeddedRows & rows) const;
    llama_pos position(int32_t row) const { return rows_->positions().at(row); }
    int32_t next_piece(int32_t i, int32_t n) const;
    void decode(const llama_token * tokens, int32_t n, int32_t first_output, bool may_stop);
    void decode_embeddings(const float * values, const std::vector<llama_pos> & parts, bool last);
    void run(const llama_batch & batch, bool may_stop);
    void append_decoded(const llama_token * tokens, int32_t n);
    bool truncate_target(int32_t n_past) const;
    bool remove_from(int32_t n_past) const;
};

}  // namespace eagle
