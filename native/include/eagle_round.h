// eagle_round.h: rounds on the recurrent memory of a hybrid context, for callers of llama_decode.
//
//   eagle_round_begin(ctx, seq)
//   llama_decode(ctx, batch)            rows of the sequence: id_last and the drafted tokens
//   eagle_round_commit(ctx, seq, n)     keep the first n rows and drop the others; n = 0 undoes the round
//
// These calls are optional: llama_memory_seq_rm on the tail of a sequence undoes up to n_rs_seq + 1 tokens of the last
// decode (none after a state load or save). Beyond that it returns false and changes nothing. Neither computes
// anything: the next decode replays the kept rows.
//
// Conventions as in eagle.h. EAGLE_ERR_INCOMPATIBLE if the context's recurrent memory does not support replay (no
// recurrent layers, an architecture that keeps snapshots, LLAMA_EAGLE_RS=snapshots).

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// Opens a round on a sequence. EAGLE_ERR_STATE if one is open, or if an earlier decode of the sequence failed half-way.
LLAMA_API int32_t eagle_round_begin(struct llama_context * ctx, llama_seq_id seq_id);

// Ends the round and keeps the first n_kept rows decoded since eagle_round_begin, 0 <= n_kept <= rows
// (EAGLE_ERR_ARGUMENT). EAGLE_ERR_STATE if no round is open, or if it has to undo more rows than it can; then the round
// stays open.
LLAMA_API int32_t eagle_round_commit(struct llama_context * ctx, llama_seq_id seq_id, int32_t n_kept);

// Same as eagle_round_commit with n_kept = 0.
LLAMA_API int32_t eagle_round_rollback(struct llama_context * ctx, llama_seq_id seq_id);

// 1: the context's decodes commit all their rows immediately. 0 (default): the next decode replays them, which costs
// about as much as one more row. Use 1 for decodes without drafts: committed rows cannot be undone. No effect without
// replay.
LLAMA_API void eagle_round_commit_at_once(struct llama_context * ctx, int32_t enable);

struct eagle_round_info {
    size_t struct_size;  // sizeof(struct eagle_round_info) of the caller
    int32_t is_open;     // 1: a round is open
    int32_t n_rows;      // tokens decoded since eagle_round_begin, 0 without a round
    int32_t n_undoable;  // tokens at the end that llama_memory_seq_rm or a commit can still undo
    int32_t is_dirty;    // 1: a decode failed half-way; remove the sequence and evaluate it again
};

LLAMA_API int32_t eagle_round_pending(struct llama_context * ctx, llama_seq_id seq_id, struct eagle_round_info * info);

#ifdef __cplusplus
}
#endif
