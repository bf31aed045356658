// eagle.h: the C interface of llama-eagle, compiled into libllama: sessions with a draft, and their rounds.
//
// Conventions of this and the other eagle_*.h
//   - Every call that can fail returns an eagle_status; 0 is success. eagle_last_error() returns the text of the last
//     failure in the calling thread. No exception and no abort crosses this boundary.
//   - Handles are opaque. Only one thread at a time may use a session.
//   - Option structs begin with their own size, so that older callers keep working; fill them with *_default_params().
//   - Positions and counts are in tokens. A row is one token of a batch, or one row of an image.
//
// One round
//   eagle_draft(id_last) -> ids[D]           propose up to D tokens after id_last
//   eagle_verify([id_last, ids...])          one llama_decode of D + 1 rows, logits for every row
//   eagle_sample(row) -> id                  row by row, while the sample equals the draft
//   eagle_commit(n_kept = a + 1)             keep the first n_kept rows, in the memory of target and draft
//
// The token sampled from the last kept row is the id_last of the next round: it is not in any memory yet.
//
// See also: eagle_sampler.h (sampling, grammars), eagle_info.h (models and devices), eagle_features.h (hidden states),
// eagle_exact.h (exact verification), eagle_round.h, eagle_drafts.h and eagle_policy.h (for callers of llama_decode).

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "llama.h"

#define EAGLE_ABI_VERSION 5

#ifdef __cplusplus
extern "C" {
#endif

enum eagle_status {
    EAGLE_OK = 0,
    EAGLE_ERR_ARGUMENT = 1,      // an argument is out of range or null
    EAGLE_ERR_STATE = 2,         // a call out of order: commit without verify, verify with a round pending, ...
    EAGLE_ERR_INCOMPATIBLE = 3,  // target and draft do not fit, or the target does not support the call
    EAGLE_ERR_MEMORY = 4,        // an allocation failed
    EAGLE_ERR_CONTEXT_FULL = 5,  // the batch does not fit into the free part of the context
    EAGLE_ERR_COMPUTE = 6,       // llama_decode or a graph failed; eagle_eval documents what remains valid
    EAGLE_ERR_ABORTED = 7,       // the computation was interrupted; eagle_eval documents what remains valid
    EAGLE_ERR_INTERNAL = 8,      // our bug
    EAGLE_ERR_NUMBERS = 9,       // the target's logits are no numbers to choose from: NaN, infinite, or all equal
};

typedef struct eagle_session eagle_session;

// --- library ---------------------------------------------------------------------------------------------------

LLAMA_API int32_t eagle_abi_version(void);
LLAMA_API const char * eagle_upstream_commit(void);  // llama.cpp commit this library was built from; static storage
LLAMA_API const char * eagle_patch_hash(void);       // sha256 over the applied patch series; static storage
LLAMA_API const char * eagle_last_error(void);  // this thread's last failure, "" if none; valid until its next call

// --- session ---------------------------------------------------------------------------------------------------

struct eagle_session_params {
    size_t struct_size;   // sizeof(struct eagle_session_params) of the caller
    int32_t n_draft_max;  // maximum draft length, 1..n_rs_seq of the target's context; without a draft 0 is allowed
    int32_t n_ctx_draft;  // context size of the draft; 0: same as the target
    int32_t n_threads;    // CPU threads of the draft; 0: same as the target
    // GGUF files of the target and the draft (UTF-8; the first file of a split model), or null: unknown.
    // eagle_session_new reads them if it needs weights that the CPU holds in a repacked layout on another device.
    // path_dft null: the draft was loaded from the target's file.
    const char * path_tgt;
    const char * path_dft;
    // Number of vocabulary rows that a draft's head evaluates for each drafted token. 0 (default), or at least the size
    // of the draft's vocabulary: the draft's own head. Otherwise the session copies that many rows (rounded up to a
    // multiple of 16), for the tokens of base_ids and for those that the text uses. Tokens without a row are never
    // drafted, which lowers the acceptance rate but never changes the text.
    int32_t n_vocab_draft;
    // Most frequent tokens first, for such a head; read by eagle_session_new. The head's rows are, in this order: end
    // and control tokens, base_ids, then the lowest ids (a BPE tokenizer numbers frequent tokens first). One row in
    // eight is reserved for tokens that the text uses; the least recently used of them is replaced. null and 0
    // (default): no list.
    int32_t n_base_ids;
    const llama_token * base_ids;
    int32_t n_ctx;  // maximum number of tokens in the session; 0 (default): same as the target's context
    // Called about five times a second while eagle_eval computes on the CPU, in its thread, with the share of its
    // tokens that is computed, 0..1. It must not use the session. null (default): never.
    void (*on_progress)(float share, void * data);
    void * progress_data;
};

LLAMA_API struct eagle_session_params eagle_session_default_params(void);

// Opens a session on sequence 0 of a target context. The context must be empty, and if the target has recurrent memory,
// it must have been created with n_rs_seq >= n_draft_max. ctx_tgt and model_dft must outlive the session.
//
// model_dft is the draft, which follows what the session evaluates:
//   - null: no draft. Tokens that the caller proposes can still be verified;
//   - a model of architecture eagle3: an EAGLE-3 draft, or a P-EAGLE draft, which proposes all tokens in one pass;
//   - a model of architecture dflash: a block draft, which proposes all tokens of a round in one pass;
//   - a model of architecture gemma4-assistant: Gemma 4's assistant, which attends to the target's own memory;
//   - the target's own llama_model, loaded with llama_model_params.load_mtp: the MTP head in the target's file. The
//     session uses the model's weights without a copy, except for a head that n_vocab_draft trims;
//   - another llama_model of the target's architecture, loaded with load_mtp from a file with an MTP head (mtp-*.gguf;
//     other blocks are optional): it drafts with the embeddings and the output head of that file;
//   - any other generating model with the target's vocabulary: a small model, which reads the text alone. It gets a
//     context of its own, and leaves out the rows of images.
// MTP heads of qwen35, qwen35moe and qwen3next are supported. EAGLE_ERR_INCOMPATIBLE if the file has no such head, or
// if the head's width or vocabulary differs from the target's. All functions below work the same for every kind of
// draft. Without a draft, "both memories" is the target's, and eagle_draft, eagle_draft_step and eagle_draft_ids return
// EAGLE_ERR_STATE.
LLAMA_API int32_t eagle_session_new(struct llama_context * ctx_tgt, const struct llama_model * model_dft,
                                    const struct eagle_session_params * params, eagle_session ** out);
LLAMA_API void eagle_session_free(eagle_session * session);

// "EAGLE-3", "P-EAGLE", "MTP", "DFlash", "DFlash2", "DSpark", "assistant", "small model", or "" without a draft; static
// storage.
LLAMA_API const char * eagle_draft_kind(const eagle_session * session);

// Name of the device that the draft runs on, "" without a draft. Valid as long as the session.
LLAMA_API const char * eagle_draft_device(const eagle_session * session);

// One sentence about the draft, which is also logged; "" if there is none. Either the reason why it does not run on the
// device that its weights were loaded to (the device lacks an operation), or, from then on, that the text has outgrown
// its context and it drafts from the last tokens. Valid until eagle_draft, eagle_eval or eagle_commit.
LLAMA_API const char * eagle_draft_notice(const eagle_session * session);

// Bytes of weights that the draft reads for each drafted token, or for each block of them.
LLAMA_API double eagle_draft_bytes_read(const eagle_session * session);

// Clears both memories.
LLAMA_API int32_t eagle_reset(eagle_session * session);

// Number of tokens committed in the target's memory.
LLAMA_API int32_t eagle_n_past(const eagle_session * session);

// Longest draft that fits into the target's context now, and into a block of the draft; 0 near the end of the context
// and while the draft has no state of the target. It does not depend on the draft's context, which slides.
LLAMA_API int32_t eagle_n_draft_room(const eagle_session * session);

// Evaluates tokens[n] and appends them to both memories, in pieces of at most n_ubatch tokens (n_batch if n_draft_max
// is 0). Afterwards llama_get_logits_ith(ctx, -1) is the row of the last token. EAGLE_ERR_CONTEXT_FULL if they do not
// fit; then nothing is changed. After EAGLE_ERR_COMPUTE and EAGLE_ERR_ABORTED the completed pieces remain
// (eagle_n_past), unless the target has a recurrent state or the draft failed: then only eagle_reset helps.
LLAMA_API int32_t eagle_eval(eagle_session * session, const llama_token * tokens, int32_t n);

// Appends the rows of an image to both memories, like eagle_eval. `rows` [n, llama_model_n_embd_inp(target)] is the
// output of the vision encoder, including channels for later layers (deepstack). Instead of a token embedding the draft
// reads the channels of each row that precede those.
//   positions    [3, n]: time, height and width of each row, relative to the position of the next row
//   n_positions  number of positions that the image occupies, at most n; the next row follows them
// The target rotates by these positions. So does a draft with M-RoPE: an MTP head of such a target, or an EAGLE-3 draft
// whose file has eagle3.rope.dimension_sections. Other drafts count rows. EAGLE_ERR_INCOMPATIBLE for a target without
// M-RoPE and for a draft whose width differs from the target's.
//
// A row of an image counts as a token in n_past, in the free room, and everywhere else in this file.
LLAMA_API int32_t eagle_eval_embeddings(eagle_session * session, const float * rows, int32_t n,
                                        const llama_pos * positions, int32_t n_positions);

// 1: SIGINT interrupts what this thread computes on the CPU in eagle_eval and eagle_eval_embeddings
// (EAGLE_ERR_ABORTED); the program's own handler runs afterwards. 0 (default): it does not. No effect on Windows, or if
// the program has no SIGINT handler.
LLAMA_API void eagle_set_interruptible(int32_t enable);

// Keeps the first n_past tokens of both memories. EAGLE_ERR_STATE if a recurrent state or a sliding window cannot be
// restored that far back: reset and evaluate again. EAGLE_ERR_ARGUMENT if the cut is inside an image.
LLAMA_API int32_t eagle_trim(eagle_session * session, int32_t n_past);

// --- round -----------------------------------------------------------------------------------------------------

// Proposes up to n_max tokens to follow id_last, the token that was sampled last and is not in memory yet. ids and
// probs hold n_max entries. probs[i] is the draft's probability of ids[i] over its own vocabulary; probs may be null.
// Stops before the first token whose cumulative probability is below p_min (0: never). *n_out may be 0.
LLAMA_API int32_t eagle_draft(eagle_session * session, llama_token id_last, int32_t n_max, float p_min,
                              llama_token * ids, float * probs, int32_t * n_out);

// Decodes ids[n] = id_last and the drafted tokens as one batch, with logits for every row: row i is
// llama_get_logits_ith(ctx, i). n = 1 is a plain decode step. The round stays pending until eagle_commit. n is at most
// n_draft_max + 1, or n_batch if n_draft_max is 0.
LLAMA_API int32_t eagle_verify(eagle_session * session, const llama_token * ids, int32_t n);

// Ends the round: keeps the first n_kept rows of the verified batch (0: none) and drops the others.
LLAMA_API int32_t eagle_commit(eagle_session * session, int32_t n_kept);

// If the target's output head is on a GPU, an open session leaves the logits of batches with up to 17 outputs there.
// eagle_choice and eagle_sample with a greedy chain copy four numbers per row to the host; llama_get_logits_ith and
// llama_get_logits copy the rows that they return, which stay valid until the next decode.

// --- draft vocabulary ------------------------------------------------------------------------------------------

// Results of step `step` of the last eagle_draft, for sampling from the draft and for tests: logits over the draft's
// vocabulary (eagle_n_vocab_draft entries) and the hidden state that the next step reads (the draft's hidden size).
// Either may be null.
LLAMA_API int32_t eagle_draft_step(const eagle_session * session, int32_t step, float * logits, float * hidden);
LLAMA_API int32_t eagle_n_vocab_draft(const eagle_session * session);

// Target token id of each entry of the draft's vocabulary: eagle_n_vocab_draft ids. With params.n_vocab_draft they
// change with the text: they describe the last eagle_draft until the next eagle_eval, eagle_commit or
// eagle_note_used_tokens.
LLAMA_API int32_t eagle_draft_ids(const eagle_session * session, llama_token * ids);

// Gives these tokens rows in a head with params.n_vocab_draft. eagle_eval and eagle_commit do so for the tokens that
// they keep; call this for tokens restored by eagle_state_load and for tokens that are likely to follow. No effect with
// other drafts. Costs microseconds for each new token.
LLAMA_API int32_t eagle_note_used_tokens(eagle_session * session, const llama_token * ids, int32_t n);

// --- state -----------------------------------------------------------------------------------------------------

// llama_state_* saves and restores the target's memory; these functions add what the session and its draft hold.
// EAGLE_ERR_STATE while a round is pending.

// Number of bytes that eagle_state_save would write now.
LLAMA_API int64_t eagle_state_size(const eagle_session * session);
LLAMA_API int32_t eagle_state_save(const eagle_session * session, void * data, int64_t size);

// Continues after the n_past tokens that llama_state_* has restored in the target's memory, with the draft's memory
// from `data` (EAGLE_ERR_INCOMPATIBLE if another draft, or one with other positions, has saved it). data null: the
// draft starts without these tokens; none of them may be the row of an image.
LLAMA_API int32_t eagle_state_load(eagle_session * session, const void * data, int64_t size, int32_t n_past);

// --- measurements ----------------------------------------------------------------------------------------------

struct eagle_timings {
    double eval_ms;    // eagle_eval
    double draft_ms;   // eagle_draft
    double verify_ms;  // eagle_verify
    double commit_ms;  // eagle_commit
    int64_t n_eval;    // tokens evaluated
    int64_t n_graphs;  // draft graphs built (each is reused afterwards)
};

// Totals since the session was opened.
LLAMA_API struct eagle_timings eagle_get_timings(const eagle_session * session);

#ifdef __cplusplus
}
#endif
