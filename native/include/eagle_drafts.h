// eagle_drafts.h: drafts for several sequences of a context that the caller decodes itself, as a server does.
//
// eagle_session (eagle.h) decodes the target. Here the caller calls llama_decode with any batch, and the context passes
// the target's states to the drafts inside that call. Truncating a sequence (llama_memory_seq_rm) needs no call either:
// the positions of its next rows show it. The rows of an image are rows of embeddings with M-RoPE positions, line by
// line. Positions that this context has not computed (a loaded state) and images that the draft cannot evaluate
// (eagle_eval_embeddings) are a gap in the draft's memory. A gap lowers the acceptance rate but never changes the text.
//
// Conventions as in eagle.h. A context has at most one eagle_drafts, and then no eagle_session.

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct eagle_drafts eagle_drafts;

// Returns true if the model is a supported draft: an EAGLE-3 or block draft, an assistant, or an architecture with a
// supported MTP head.
LLAMA_API bool eagle_drafts_supports(const struct llama_model * model);

// Creates drafts for the sequences 0 .. n_seq - 1. model_dft and params as in eagle_session_new; n_draft_max must be
// valid and limits the drafts of a small model alone. Memory for a sequence is allocated at its first token.
LLAMA_API int32_t eagle_drafts_new(struct llama_context * ctx_tgt, const struct llama_model * model_dft,
                                   const struct eagle_session_params * params, int32_t n_seq, eagle_drafts ** out);
LLAMA_API void eagle_drafts_free(eagle_drafts * drafts);

// As eagle_draft_kind.
LLAMA_API const char * eagle_drafts_kind(const eagle_drafts * drafts);

// Reports that the sequence's memory now holds tokens[n], with images between them. The draft reuses its memory of this
// text and drops that of any other text. Call it after a context shift, too, which removes rows before the last ones
// (llama_memory_seq_rm, llama_memory_seq_add), before the next row is decoded.
LLAMA_API int32_t eagle_drafts_text(eagle_drafts * drafts, llama_seq_id seq, const llama_token * tokens, int32_t n);

struct eagle_draft_request {
    llama_seq_id seq;
    llama_pos pos;        // position of id_last; the sequence's memory holds the positions before it
    llama_token id_last;  // the token that was sampled last and is not in memory yet
    int32_t n_max;        // maximum draft length; the size of ids
    llama_token * ids;
    int32_t n_out;  // out: number of drafted tokens; 0 if the draft has no room or no states of the target
};

// Drafts for each of requests[n], which must be of different sequences. p_min as in eagle_draft.
LLAMA_API int32_t eagle_drafts_propose(eagle_drafts * drafts, struct eagle_draft_request * requests, int32_t n,
                                       float p_min);

// Saves and loads the draft's part of a sequence, like eagle_state_*. `pos` is the position of the sequence's next row.
// Size 0: there is nothing to save. Restore the target's memory before eagle_drafts_state_load; data null: the draft
// starts without these rows.
LLAMA_API int64_t eagle_drafts_state_size(eagle_drafts * drafts, llama_seq_id seq, llama_pos pos);
LLAMA_API int32_t eagle_drafts_state_save(eagle_drafts * drafts, llama_seq_id seq, void * data, int64_t size);
LLAMA_API int32_t eagle_drafts_state_load(eagle_drafts * drafts, llama_seq_id seq, const void * data, int64_t size,
                                          llama_pos pos);

#ifdef __cplusplus
}
#endif
