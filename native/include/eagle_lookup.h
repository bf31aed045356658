// eagle_lookup.h: drafts from texts of this process and, with a file, of earlier ones: what most likely follows the
// newest tokens.
//
// Every text that a sequence holds is remembered as n-grams with the tokens that followed them, in a table of fixed
// size that all sequences share; old entries make room for new ones. Costs microseconds a token.
//
// Statuses and threads as in eagle.h.

#pragma once

#include "eagle.h"
#include "eagle_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct eagle_lookup eagle_lookup;

// For the sequences 0 .. n_seq - 1. Tokens are looked up by the n_gram tokens before them, then by fewer, down to
// n_min.
LLAMA_API int32_t eagle_lookup_new(int32_t n_seq, int32_t n_gram, int32_t n_min, eagle_lookup ** out);
LLAMA_API void eagle_lookup_free(eagle_lookup * lookup);

// From now on the look-up also knows the texts of earlier processes, which `path` holds; a file that is not there holds
// none. EAGLE_ERR_INCOMPATIBLE for one of another vocabulary or a later version, and one that is no file of a look-up.
LLAMA_API int32_t eagle_lookup_open(eagle_lookup * lookup, const struct llama_vocab * vocab, const char * path);

// Returns the reason why a damaged file was treated as empty; "" if it is sound, and before eagle_lookup_open.
LLAMA_API const char * eagle_lookup_notice(const eagle_lookup * lookup);

// Writes what the look-up knows to that file: as a whole, and merged with what other processes have written meanwhile.
// Does nothing without a file, and if nothing was learned. EAGLE_ERR_STATE if it cannot be written.
LLAMA_API int32_t eagle_lookup_save(eagle_lookup * lookup);

// The sequence's text is ids[n] now. What it shares with the earlier one from the start on is not learned again.
LLAMA_API int32_t eagle_lookup_begin(eagle_lookup * lookup, llama_seq_id seq, const llama_token * ids, int32_t n);

// The text was continued.
LLAMA_API int32_t eagle_lookup_extend(eagle_lookup * lookup, llama_seq_id seq, const llama_token * ids, int32_t n);

// Proposes up to n_max tokens to follow id_last, the token after the text. n_out: number of proposed tokens. n_match:
// number of tokens up to id_last that the match in an earlier text has in common with this one.
LLAMA_API int32_t eagle_lookup_draft(const eagle_lookup * lookup, llama_seq_id seq, llama_token id_last,
                                     llama_token * ids, int32_t n_max, int32_t * n_out, int32_t * n_match);

// The beginning of a round of one sequence, in one call: a front end makes it for every token of a plain text. `came`:
// the tokens that were added to the text since the last round or begin, and the one that follows them. Extends the
// text, compares the last offer with it, writes a new one to ids[draft->n_max] if it is worth its time, and chooses.
LLAMA_API int32_t eagle_lookup_round(eagle_lookup * lookup, eagle_policy * policy, const llama_token * came,
                                     int32_t n_came, llama_token * ids, struct eagle_policy_draft * draft);

#ifdef __cplusplus
}
#endif
