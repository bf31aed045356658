// eagle_policy.h: which drafter proposes the tokens of a round, and how many: by measured acceptance and times.
//
// One policy serves all sequences of a context; those of a round are decoded together. There are two sources of drafts:
//   - the offer: tokens that are known before the choice, from the prompt look-up (eagle_lookup.h) or from a drafter of
//     the caller's own. The policy compares every offer with the text that follows, whether it was verified or not.
//   - the model: an EAGLE-3 draft, an MTP head, a block draft. It is called after the choice, and its time grows with
//     the length, that of a block draft hardly.
//
// One round
//   eagle_policy_offer(seq, ids)             if eagle_policy_wants_offer(); for each sequence
//   eagle_policy_choose(drafts)              source and length for each sequence of the round
//   eagle_policy_drafted(...)                the model's time, 0 tokens if it was not called
//   eagle_policy_decoded(...)                the time from the verification to the last sampled row
//   eagle_policy_verified(seq, ...)          the model's accepted tokens
//   eagle_policy_text(seq, ids)              tokens that were added to the text
//
// Times are in ms; no clock is read here. Statuses and threads as in eagle.h.

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct eagle_policy eagle_policy;

enum eagle_draft_source {
    EAGLE_SOURCE_NONE = 0,
    EAGLE_SOURCE_OFFER = 1,
    EAGLE_SOURCE_MODEL = 2,
};

struct eagle_policy_params {
    size_t struct_size;   // sizeof(struct eagle_policy_params) of the caller
    int32_t n_seq;        // sequences 0 .. n_seq - 1
    int32_t n_draft_max;  // longest draft
    int32_t n_draft;      // the only length that drafts may have; 0: the fastest one
    bool has_model;       // there is a draft model
    int32_t n_rows;       // entries of row_cost
    const float *
        row_cost;      // weights that a decode of 1, 2, ... rows reads, as a share of one row's; null: all the same
    float token_cost;  // the same of a drafted token; 0: unknown
    float draft_cost;  // the same of a draft of any length: not 0 for a model that drafts a block at once
};

LLAMA_API struct eagle_policy_params eagle_policy_default_params(void);
LLAMA_API int32_t eagle_policy_new(const struct eagle_policy_params * params, eagle_policy ** out);
LLAMA_API void eagle_policy_free(eagle_policy * policy);

// The sequence holds another text now.
LLAMA_API int32_t eagle_policy_begin(eagle_policy * policy, llama_seq_id seq);

// Returns true if an offer is worth its time in this round: a slow one is wanted rarely, unless it is fastest.
LLAMA_API bool eagle_policy_wants_offer(const eagle_policy * policy);

// Tokens that may follow the text, and the time it took to find them. n may be 0. n_match: tokens before them that are
// the text's last ones, too: acceptance is counted by it; 0: unknown.
LLAMA_API int32_t eagle_policy_offer(eagle_policy * policy, llama_seq_id seq, const llama_token * ids, int32_t n,
                                     int32_t n_match, double ms);

struct eagle_policy_draft {
    llama_seq_id seq;
    int32_t n_max;    // tokens that there is room for
    int32_t source;   // out: an eagle_draft_source
    int32_t n_draft;  // out: tokens to draft, 0 for EAGLE_SOURCE_NONE
};

// Chooses for all sequences of a round. Those that draft have one length, up to their n_max and offer: llama.cpp may
// decode sequences with different numbers of rows in parts, and each part reads all weights.
LLAMA_API int32_t eagle_policy_choose(eagle_policy * policy, struct eagle_policy_draft * drafts, int32_t n);

// The model drafted n_tokens for each of n_seq sequences.
LLAMA_API int32_t eagle_policy_drafted(eagle_policy * policy, int32_t n_seq, int32_t n_tokens, double ms);

// n_rows rows of n_seq sequences were decoded and sampled.
LLAMA_API int32_t eagle_policy_decoded(eagle_policy * policy, int32_t n_seq, int32_t n_rows, double ms);

// The first n_accepted of the n_draft tokens that the model drafted were right.
LLAMA_API int32_t eagle_policy_verified(eagle_policy * policy, llama_seq_id seq, int32_t n_draft, int32_t n_accepted);

// The text was continued by these tokens: the first one follows what the last offer was made for.
LLAMA_API int32_t eagle_policy_text(eagle_policy * policy, llama_seq_id seq, const llama_token * ids, int32_t n);

// The calls drafted, decoded and verified of a round of one sequence in one.
struct eagle_policy_round {
    llama_seq_id seq;
    int32_t n_model;  // tokens that the model drafted; 0: it was not called
    int32_t n_draft, n_accepted;
    double draft_ms, verify_ms;
};

LLAMA_API int32_t eagle_policy_observe(eagle_policy * policy, const struct eagle_policy_round * round);

#ifdef __cplusplus
}
#endif
