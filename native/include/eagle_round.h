// eagle_round.h: rounds on the recurrent memory of a hybrid context, for callers that decode with llama_decode
// themselves.
//
//   eagle_round_begin(ctx, seq)
//   llama_decode(ctx, batch)            rows of the sequence: id_last and the drafted tokens
//   eagle_round_commit(ctx, seq, n)     the first n rows stay, the others are forgotten; n = 0 undoes the round
//
// The same happens without these calls: llama_memory_seq_rm on the tail of a sequence undoes up to n_rs_seq + 1 tokens,
// counted from what the last decode really left (a state load or save leaves nothing to undo), and returns false,
// changing nothing, beyond that. Nothing is computed by either: the kept rows are replayed by the next decode.
//
// Conventions are those of eagle.h: statuses of eagle_status, text of the last failure from eagle_last_error().
// EAGLE_ERR_INCOMPATIBLE when the context's recurrent memory is not replayed (no recurrent layers, an architecture
// that keeps snapshots, LLAMA_EAGLE_RS=snapshots).

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// Opens a round on a sequence. EAGLE_ERR_STATE when one is open, or when an earlier decode of it failed half-way.
LLAMA_API int32_t eagle_round_begin(struct llama_context * ctx, llama_seq_id seq_id);

// Ends the round: of the rows decoded since begin the first n_kept stay, 0 <= n_kept <= rows (EAGLE_ERR_ARGUMENT).
// EAGLE_ERR_STATE when none is open, or when the rows to forget are more than can be undone; the round stays open then.
LLAMA_API int32_t eagle_round_commit(struct llama_context * ctx, llama_seq_id seq_id, int32_t n_kept);

// eagle_round_commit with n_kept = 0.
LLAMA_API int32_t eagle_round_rollback(struct llama_context * ctx, llama_seq_id seq_id);

// From now on the context's decodes commit all their rows at once (1), or leave them to be replayed by the next one (0,
// the default). Rows that were committed cannot be undone, and cost nothing more: for decodes of which nothing will be
// forgotten, while a state that is replayed would cost about as much as one more row. Never an error: without replay
// nothing changes.
LLAMA_API void eagle_round_commit_at_once(struct llama_context * ctx, int32_t wanted);

struct eagle_round_info {
    size_t struct_size;  // sizeof(struct eagle_round_info) of the caller
    int32_t is_open;     // 1: a round is open
    int32_t n_rows;      // tokens decoded since eagle_round_begin, 0 without a round
    int32_t n_undoable;  // tokens that llama_memory_seq_rm or a commit can still take from the end
    int32_t is_dirty;    // 1: a decode failed half-way, the sequence must be removed and evaluated again
};

LLAMA_API int32_t eagle_round_pending(struct llama_context * ctx, llama_seq_id seq_id, struct eagle_round_info * info);

#ifdef __cplusplus
}
#endif
