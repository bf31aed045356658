// What is chosen from one row of logits: greedily, or by a sampler chain, without candidates for the whole vocabulary
// where the chain needs few of them. `row` is an output row of the last decode, as in llama_get_logits_ith.
#pragma once

#include <cstdint>
#include <vector>

#include "eagle_choice.h"
#include "llama.h"

namespace eagle {

// Of a row, the first k logits and each later one above the k-th largest before it, in the row's order. That is what
// std::partial_sort, by which llama.cpp's top-k sampler chooses, ever moves: it makes of these what it would make of
// the whole row, with equal logits at the border and in the order of equal ones too.
void top_candidates(const float * logits, int64_t n, int32_t k, std::vector<llama_token_data> & out);

// The top candidates of a row for a chain that begins with top-k; false where it needs the whole row, or the device has
// chosen.
bool few_candidates(llama_context * ctx, llama_sampler * chain, int32_t row, std::vector<llama_token_data> & out);

// The lowest id among the largest logits. Only where the device has not chosen are the row's logits brought here.
llama_token greedy(llama_context * ctx, int32_t row);

// The same and the runner-up.
Choice choose(llama_context * ctx, int32_t row);

// Applies each sampler of the chain, or a single sampler, to candidates. Throws an Error when a grammar among them
// rejects all candidates: what follows would choose from nothing, and accepting that choice would end the process.
void apply(llama_sampler * sampler, llama_token_data_array & candidates);

// Samples a row and takes the token into the chain's state, as llama_sampler_sample does.
llama_token sample(llama_context * ctx, llama_sampler * chain, int32_t row);

}  // namespace eagle
