// eagle_sampler.h: sampling without undefined behaviour, and checks of grammars. Part of the C interface; conventions
// as in eagle.h.

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// Does what llama_sampler_sample does with output row `row` of the last decode (-1: the last row): returns the same
// token and leaves the chain in the same state. If the chain begins with top-k (disabled samplers aside) or is greedy,
// it does not build candidates for the whole vocabulary.
LLAMA_API int32_t eagle_sample(struct llama_context * ctx, struct llama_sampler * sampler, int32_t row,
                               llama_token * id);

// EAGLE_ERR_NUMBERS if output row `row` has NaN or +inf, which makes every probability of llama.cpp's samplers NaN,
// or if all its logits are equal: the file is damaged, or a value overflows. The error describes the row. eagle_sample
// and eagle_choice check their rows themselves; their greedy choice passes over single NaN, as llama.cpp's does.
// EAGLE_OK for a row that llama.cpp has sampled on the device.
LLAMA_API int32_t eagle_require_numbers(struct llama_context * ctx, int32_t row);

// Do what llama_sampler_apply and llama_sampler_accept do, but return a status where those throw or abort:
// EAGLE_ERR_ARGUMENT if a grammar in the chain allows none of the candidates, if it does not allow the token, or if it
// reaches too many states.
LLAMA_API int32_t eagle_sampler_apply(struct llama_sampler * sampler, llama_token_data_array * candidates);
LLAMA_API int32_t eagle_sampler_accept(struct llama_sampler * sampler, llama_token id);

// Checks that llama_sampler_init_grammar can load this GBNF text (null-terminated UTF-8) with the root rule `root`.
// EAGLE_ERR_ARGUMENT if it cannot be parsed or exceeds a limit of eagle_grammar.h (size, depth, states, time), at which
// llama.cpp's own function would crash or hang. A grammar can pass and still reach too many states later: then
// eagle_sample fails. vocab: null for a grammar without tokens.
LLAMA_API int32_t eagle_grammar_check(const struct llama_vocab * vocab, const char * text, const char * root);

// Translates the pattern of a JSON schema into the right side of a GBNF rule for JSON strings that match it, and writes
// it with its terminating null into rule[size]. EAGLE_ERR_ARGUMENT for syntax that is not supported; the error names
// it.
LLAMA_API int32_t eagle_pattern_rule(const char * pattern, char * rule, size_t size);

#ifdef __cplusplus
}
#endif
