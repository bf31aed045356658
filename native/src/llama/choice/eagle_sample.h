// Sampling from one row of logits: greedily, or by a sampler chain, with few candidates if the chain allows it. `row`
// is an output row of the last decode, as in llama_get_logits_ith.
#pragma once

#include <cstdint>
#include <vector>

#include "eagle_choice.h"
#include "llama.h"

namespace eagle {

// Returns the first k logits of a row and every later one above the k-th largest before it, in the row's order. These
// are the only elements that std::partial_sort (llama.cpp's top-k) can select, so it gives the same result as for the
// whole row, and resolves ties identically.
void top_candidates(const float * logits, int64_t n, int32_t k, std::vector<llama_token_data> & out);

// Writes the top candidates of a row for a chain that begins with top-k. Returns false if the chain needs the whole
// row, or if llama.cpp has sampled on the device.
bool few_candidates(llama_context * ctx, llama_sampler * chain, int32_t row, std::vector<llama_token_data> & out);

// Throws EAGLE_ERR_NUMBERS if the row has NaN or +inf, or if all its logits are equal. Rows that llama.cpp has sampled
// on the device pass.
void require_numbers(llama_context * ctx, int32_t row);

// Returns the lowest id with the largest logit; NaN counts as -inf. Throws EAGLE_ERR_NUMBERS if the largest logit is
// not finite, or if all are equal. Copies the row's logits only if the device has not chosen.
llama_token greedy(llama_context * ctx, int32_t row);

// Returns the two most probable tokens of the row.
Choice choose(llama_context * ctx, int32_t row);

// Applies each sampler of the chain, or a single sampler, to candidates. Throws an Error if a grammar among them
// rejects all candidates: otherwise the next sampler would choose an invalid token, and accepting it would abort the
// process.
void apply(llama_sampler * sampler, llama_token_data_array & candidates);

// Samples a token and accepts it into the chain's state, as llama_sampler_sample does.
llama_token sample(llama_context * ctx, llama_sampler * chain, int32_t row);

}  // namespace eagle
