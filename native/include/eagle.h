// eagle.h: the C interface of llama-eagle, compiled into libllama.
//
// Conventions
//   - Every call that can fail returns an eagle_status; 0 is success. The text for the last failure on the calling
//     thread is eagle_last_error(). No exception and no abort crosses this boundary.
//   - Handles are opaque. A session belongs to one thread at a time.
//   - Option structs begin with their own size, so that older callers keep working; fill them with *_default().
//   - Positions and counts are in tokens. Row means one token of a batch, or one row of an image.
//
// One round
//   eagle_draft(id_last) -> ids[D]           propose up to D tokens after id_last
//   eagle_verify([id_last, ids...])          one llama_decode of D + 1 rows, logits for every row
//   eagle_accept(sampler) -> ids[a + 1]      sample row by row while the sample equals the draft
//   eagle_commit(n_kept = a + 1)             keep the first n_kept rows; target and draft memory forget the others
//
// The token sampled from the last kept row is the id_last of the next round: it is not yet in any memory.

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "llama.h"

#define EAGLE_ABI_VERSION 3

#ifdef __cplusplus
extern "C" {
#endif

enum eagle_status {
    EAGLE_OK = 0,
    EAGLE_ERR_ARGUMENT = 1,      // an argument is out of range or null
    EAGLE_ERR_STATE = 2,         // a call out of order: commit without verify, verify with a round pending, ...
    EAGLE_ERR_INCOMPATIBLE = 3,  // target and draft do not fit, or the target cannot give what is asked
    EAGLE_ERR_MEMORY = 4,        // an allocation failed
    EAGLE_ERR_CONTEXT_FULL = 5,  // the batch does not fit into what is left of the context
    EAGLE_ERR_COMPUTE = 6,       // llama_decode or a graph failed; see eagle_eval for what is left
    EAGLE_ERR_ABORTED = 7,       // the computation was stopped; see eagle_eval
    EAGLE_ERR_INTERNAL = 8,      // our bug
};

typedef struct eagle_session eagle_session;

// --- library ---------------------------------------------------------------------------------------------------

LLAMA_API int32_t eagle_abi_version(void);
LLAMA_API const char * eagle_upstream_commit(void);  // llama.cpp commit this library was built from; static storage
LLAMA_API const char * eagle_patch_hash(void);       // sha256 over the applied patch series; static storage
LLAMA_API const char * eagle_last_error(void);  // this thread's last failure, "" if none; valid until its next call

// The HOST:PORT of an RPC server that ctx computes on and that is gone, "" while all are there: what the context holds
// is lost, and its model has to be loaded again. Valid as long as the context.
LLAMA_API const char * eagle_lost_server(const struct llama_context * ctx);

// Where a layer lies, 0..llama_model_n_layer(model); that number itself: the head. Null for other numbers.
LLAMA_API ggml_backend_dev_t eagle_layer_device(const struct llama_model * model, int32_t layer);

// Bytes of weights that a decode of n_rows rows reads: of experts, as many as so many rows are expected to use. 0 for
// no model or no row.
LLAMA_API double eagle_bytes_read(const struct llama_model * model, int32_t n_rows);

// --- session ---------------------------------------------------------------------------------------------------

struct eagle_session_params {
    size_t struct_size;   // sizeof(struct eagle_session_params) of the caller
    int32_t n_draft_max;  // longest draft of a round, 1..n_rs_seq of the target's context; 0 without a draft: none
    int32_t n_ctx_draft;  // positions the draft's memory holds; 0: as many as the target's context
    int32_t n_threads;    // CPU threads of the draft; 0: those of the target's context
    int32_t type_kv;      // ggml_type of the draft's K and V memory: GGML_TYPE_F16 (default) or GGML_TYPE_F32
    // The GGUF that the target was loaded from, UTF-8, the first one of splits; null (default): not known. Read by
    // eagle_session_new when the draft, on another device, shares a head that the CPU keeps rearranged.
    const char * path_tgt;
    // The draft's, when it was loaded from another file than the target; null (default): not known. Read like path_tgt.
    const char * path_dft;
    // Rows of the head that an MTP draft reads at every step: 0 (default) or the whole vocabulary: the model's own
    // head, used where it lies. Less: a copy of so many of its rows (rounded up to a multiple of 16), for the tokens of
    // base_ids and those that the text uses. Tokens without a row are not drafted: that costs accepted drafts, never
    // the text. EAGLE_ERR_ARGUMENT for drafts that bring a vocabulary of their own.
    int32_t n_vocab_draft;
    // The likeliest tokens, likeliest first, for the rows of such a head: read by eagle_session_new, of any number.
    // Before them come the tokens that end or structure a text, after them the lowest ids (a BPE tokenizer's ids are in
    // the order of its merges, so these are the frequent ones). One row in eight is reserved for tokens of the text
    // that have none: the least recently used of these gives way. null and 0 (default): no list.
    int32_t n_base_ids;
    const llama_token * base_ids;
    int32_t n_ctx;  // tokens that the session holds at most; 0 (default): as many as the target's context
};

LLAMA_API struct eagle_session_params eagle_session_default_params(void);

// Opens a session on sequence 0 of a target context. The context must be empty, and have been created with n_rs_seq >=
// n_draft_max when the target has recurrent memory. ctx_tgt and model_dft must outlive the session.
//
// model_dft is the draft, which follows what the session evaluates:
//   - null: there is none. Tokens that the caller proposes are verified all the same;
//   - a model of architecture eagle3: an EAGLE-3 draft;
//   - the target's own llama_model, loaded with llama_model_params.load_mtp: the next-token-prediction (MTP) head in
//   the
//     target's file. Its block and, unless n_vocab_draft trims it, the head are used where they lie;
//   - another llama_model of the target's architecture, loaded with load_mtp from a file that holds this head, with or
//     without the other blocks (mtp-*.gguf): it drafts with the embeddings and the head of that file.
// MTP heads are known of qwen35, qwen35moe and qwen3next. EAGLE_ERR_INCOMPATIBLE when the file has no such head, or the
// head is of another width or vocabulary than the target. All calls below mean the same for every kind; without a
// draft, "both memories" is the target's, and eagle_draft, eagle_draft_step and eagle_draft_ids are EAGLE_ERR_STATE.
LLAMA_API int32_t eagle_session_new(struct llama_context * ctx_tgt, const struct llama_model * model_dft,
                                    const struct eagle_session_params * params, eagle_session ** out);
LLAMA_API void eagle_session_free(eagle_session * session);

// "EAGLE-3", "MTP", or "" without a draft; static storage.
LLAMA_API const char * eagle_draft_kind(const eagle_session * session);

// The name of the device that the draft runs on, "" without a draft. Valid as long as the session.
LLAMA_API const char * eagle_draft_device(const eagle_session * session);

// Why that is not the device that its weights were loaded to, in one sentence that llama.cpp's log has too: it computes
// not all that the draft needs. "" when it is. Valid as long as the session.
LLAMA_API const char * eagle_draft_notice(const eagle_session * session);

// Bytes of weights that the draft reads for each token it drafts.
LLAMA_API double eagle_draft_bytes_read(const eagle_session * session);

// Forgets everything in both memories.
LLAMA_API int32_t eagle_reset(eagle_session * session);

// Tokens committed in the target's memory.
LLAMA_API int32_t eagle_n_past(const eagle_session * session);

// Longest draft that there is room for now: 0 near the end of the target's or the draft's context.
LLAMA_API int32_t eagle_n_draft_room(const eagle_session * session);

// Appends tokens[n] to both memories, in pieces: of at most n_ubatch, or of n_batch if n_draft_max is 0. Afterwards
// llama_get_logits_ith(ctx, -1) is the row of the last token. n must fit into the context (EAGLE_ERR_CONTEXT_FULL
// otherwise, nothing is changed). After EAGLE_ERR_COMPUTE and EAGLE_ERR_ABORTED the pieces before are there
// (eagle_n_past), unless the target has a recurrent state or the draft failed: then only eagle_reset helps.
LLAMA_API int32_t eagle_eval(eagle_session * session, const llama_token * tokens, int32_t n);

// Appends the rows of an image to both memories, like eagle_eval: `rows` [n, llama_model_n_embd_inp(target)] are what
// the vision encoder made of it, channels for later layers (deepstack) included. A draft reads of each row what stands
// before those channels, where it would read a token's embedding.
//   positions    [3, n]: time, height and width of each row, counted from the position of the next row
//   n_positions  how many positions the image takes: the row after it stands there. At most n
// The target rotates by them, and so does a draft with M-RoPE: an MTP head of such a target, an EAGLE-3 draft whose
// file says so (eagle3.rope.dimension_sections). Others count rows. EAGLE_ERR_INCOMPATIBLE for a target without M-RoPE
// and for a draft of another width than the target.
//
// A row of an image counts as a token in n_past, in the room that is left, and everywhere else in this file.
LLAMA_API int32_t eagle_eval_embeddings(eagle_session * session, const float * rows, int32_t n,
                                        const llama_pos * positions, int32_t n_positions);

// From now on SIGINT stops what this thread computes on the CPU in eagle_eval and eagle_eval_embeddings
// (EAGLE_ERR_ABORTED); the program's own handler has it afterwards. 0: no longer. Nothing is stopped where the program
// has no handler, and on Windows.
LLAMA_API void eagle_hear_interrupts(int32_t wanted);

// Keeps the first n_past tokens of both memories. EAGLE_ERR_STATE when a recurrent state or a sliding window cannot go
// back that far: reset and evaluate again. EAGLE_ERR_ARGUMENT when they end within an image.
LLAMA_API int32_t eagle_trim(eagle_session * session, int32_t n_past);

// --- round -----------------------------------------------------------------------------------------------------

// Proposes up to n_max tokens to follow id_last, the token sampled last and not yet in memory. ids and probs hold
// n_max entries; probs[i] is the draft's probability of ids[i] over its own vocabulary, and may be null. Stops before
// the first token whose cumulative probability is below p_min (0: never). *n_out may be 0.
LLAMA_API int32_t eagle_draft(eagle_session * session, llama_token id_last, int32_t n_max, float p_min,
                              llama_token * ids, float * probs, int32_t * n_out);

// Decodes ids[n] = id_last and the drafted tokens as one batch, with logits for every row: row i is
// llama_get_logits_ith(ctx, i). n = 1 is a plain decode step. The round stays pending until eagle_commit. At most
// n_draft_max + 1 rows, or n_batch rows if n_draft_max is 0.
LLAMA_API int32_t eagle_verify(eagle_session * session, const llama_token * ids, int32_t n);

// Samples rows 0, 1, ... of the pending round with the caller's chain, accepting each sample into it, and stops after
// the first sample that differs from the drafted token of the next row. ids holds the rows of the round; *n_out is the
// number of samples, 1 + the number of accepted drafts. sampler null: greedy, the lowest id among equal logits.
LLAMA_API int32_t eagle_accept(eagle_session * session, struct llama_sampler * sampler, llama_token * ids,
                               int32_t * n_out);

// What llama_sampler_sample does with output row `row` of the last decode (-1: the last one): the same token, the same
// state of the chain. A chain that begins with top-k (samplers that are switched off aside) or is greedy gets by
// without candidates for the whole vocabulary.
LLAMA_API int32_t eagle_sample(struct llama_context * ctx, struct llama_sampler * sampler, int32_t row,
                               llama_token * id);

// What llama_sampler_apply and llama_sampler_accept do, with a status where those throw or abort: EAGLE_ERR_ARGUMENT
// when a grammar in the chain allows none of the candidates, when its states explode, or when it does not allow the
// token.
LLAMA_API int32_t eagle_sampler_apply(struct llama_sampler * sampler, llama_token_data_array * candidates);
LLAMA_API int32_t eagle_sampler_accept(struct llama_sampler * sampler, llama_token id);

// Whether llama_sampler_init_grammar can take this GBNF text (null-terminated UTF-8), beginning at the rule `root`:
// EAGLE_ERR_ARGUMENT when it cannot be parsed or is beyond a limit of eagle_grammar.h (size, depth, states, time),
// which llama.cpp's own call would not survive. A grammar whose states explode later in the text makes eagle_sample
// fail.
LLAMA_API int32_t eagle_grammar_check(const struct llama_vocab * vocab, const char * text, const char * root);

// Translates the pattern of a JSON schema into the right side of a GBNF rule for JSON strings that match it, written
// with its null into rule[size]. EAGLE_ERR_ARGUMENT names what cannot be followed.
LLAMA_API int32_t eagle_pattern_rule(const char * pattern, char * rule, size_t size);

// With a session on a target whose head is on a GPU, batches with up to 17 outputs leave their logits there:
// eagle_accept without a sampler and eagle_sample with a greedy chain bring four numbers per row to the host.
// llama_get_logits_ith and llama_get_logits bring the rows that they return, which stay valid until the next decode.

// What the draft computed at `step` of the last eagle_draft, for tests and for sampling from the draft: logits over its
// own vocabulary (eagle_n_vocab_draft entries) and the hidden state fed to the next step (the draft's hidden size).
// Either may be null.
LLAMA_API int32_t eagle_draft_step(const eagle_session * session, int32_t step, float * logits, float * hidden);
LLAMA_API int32_t eagle_n_vocab_draft(const eagle_session * session);

// The target's token of each entry of the draft's vocabulary: eagle_n_vocab_draft ids. With params.n_vocab_draft they
// follow the text: these are the ids of the last eagle_draft until the next eagle_eval, eagle_commit or
// eagle_note_tokens.
LLAMA_API int32_t eagle_draft_ids(const eagle_session * session, llama_token * ids);

// The text uses these tokens: a head whose vocabulary follows the text (params.n_vocab_draft) gets rows for them.
// Tokens that eagle_eval and eagle_commit keep are noted by themselves; tell it those that come with eagle_state_load,
// and those that are likely to come. Nothing happens with other drafts. A token costs microseconds when it is new.
LLAMA_API int32_t eagle_note_tokens(eagle_session * session, const llama_token * ids, int32_t n);

// Ends the round: the first n_kept rows of the verify batch stay (0 undoes the whole round), the others are forgotten.
LLAMA_API int32_t eagle_commit(eagle_session * session, int32_t n_kept);

// --- state -----------------------------------------------------------------------------------------------------

// The target's memory is saved and restored with llama_state_*; these carry what the session and its draft keep in
// addition. EAGLE_ERR_STATE while a round is pending.

// Bytes that eagle_state_save writes now.
LLAMA_API int64_t eagle_state_size(const eagle_session * session);
LLAMA_API int32_t eagle_state_save(const eagle_session * session, void * data, int64_t size);

// llama_state_* has put n_past tokens into the target's memory: the session goes on after them, with the draft's memory
// from `data` (EAGLE_ERR_INCOMPATIBLE when it was saved by another draft or with other positions). data null: the draft
// knows nothing of them and drafts by what follows; none of them may be the row of an image.
LLAMA_API int32_t eagle_state_load(eagle_session * session, const void * data, int64_t size, int32_t n_past);

// --- measurements ----------------------------------------------------------------------------------------------

struct eagle_timings {
    double eval_ms;    // eagle_eval
    double draft_ms;   // eagle_draft
    double verify_ms;  // eagle_verify
    double sample_ms;  // eagle_accept
    double commit_ms;  // eagle_commit
    int64_t n_eval;    // tokens evaluated
    int64_t n_graphs;  // draft graphs built (each is reused afterwards)
};

// Since the session began.
LLAMA_API struct eagle_timings eagle_get_timings(const eagle_session * session);

#ifdef __cplusplus
}
#endif
