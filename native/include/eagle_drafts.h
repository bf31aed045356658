// eagle_drafts.h: drafts for several sequences of a context whose decodes the caller makes, as a server does.
//
// eagle_session (eagle.h) decodes the target itself. Here the caller calls llama_decode with any batch; the states of
// the target reach the drafts inside that call. A sequence that goes back (llama_memory_seq_rm) needs no call either:
// its next rows begin where it went back to. The rows of an image are rows of embeddings with M-RoPE positions, line by
// line. Positions that no decode of this context has computed (a state that was loaded), and images that the draft
// cannot read (eagle_eval_embeddings), leave a gap that it does not see: it costs accepted drafts, never the text.
//
// Statuses, texts of failures and threads as in eagle.h. One eagle_drafts for a context, and no eagle_session beside
// it.

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct eagle_drafts eagle_drafts;

// Whether such a draft can be had of the model: an EAGLE-3 draft, or a model whose MTP head we know.
LLAMA_API bool eagle_drafts_with(const struct llama_model * model);

// For the sequences 0 .. n_seq - 1. What a draft is, and the params, as in eagle_session_new; n_draft_max limits
// nothing here but must be sound. A sequence takes memory from its first token on.
LLAMA_API int32_t eagle_drafts_new(struct llama_context * ctx_tgt, const struct llama_model * model_dft,
                                   const struct eagle_session_params * params, int32_t n_seq, eagle_drafts ** out);
LLAMA_API void eagle_drafts_free(eagle_drafts * drafts);

// "EAGLE-3" or "MTP"; static storage.
LLAMA_API const char * eagle_drafts_kind(const eagle_drafts * drafts);

// The sequence's memory holds tokens[n] now, and images between them: what the draft has taken in of another text is
// forgotten, and what it has of this one is used again.
LLAMA_API int32_t eagle_drafts_text(eagle_drafts * drafts, llama_seq_id seq, const llama_token * tokens, int32_t n);

struct eagle_draft_request {
    llama_seq_id seq;
    llama_pos pos;        // of id_last: the sequence's memory holds the positions before it
    llama_token id_last;  // the token sampled last and not yet in memory
    int32_t n_max;        // tokens that ids holds
    llama_token * ids;
    int32_t n_out;  // tokens drafted: may be 0, for want of room or of states
};

// Drafts for each of requests[n], which name different sequences. p_min as in eagle_draft.
LLAMA_API int32_t eagle_drafts_propose(eagle_drafts * drafts, struct eagle_draft_request * requests, int32_t n,
                                       float p_min);

// A sequence's part, as eagle_state_*: of a sequence whose next row stands at `pos`. Size 0: it knows nothing worth
// saving. load must follow whatever put the rows into the target's memory; data null: as if nothing had been saved.
LLAMA_API int64_t eagle_drafts_state_size(eagle_drafts * drafts, llama_seq_id seq, llama_pos pos);
LLAMA_API int32_t eagle_drafts_state_save(eagle_drafts * drafts, llama_seq_id seq, void * data, int64_t size);
LLAMA_API int32_t eagle_drafts_state_load(eagle_drafts * drafts, llama_seq_id seq, const void * data, int64_t size,
                                          llama_pos pos);

#ifdef __cplusplus
}
#endif
