// Sampling from few candidates instead of a whole row of logits.
#pragma once

#include <cstdint>

#include "llama.h"

extern "C" {

// Writes the candidates of output row `row` that suffice for `chain` to out[n_vocab] and returns their number; 0: the
// chain needs all. With these candidates the chain gives the same result as with the whole row.
LLAMA_API int32_t eagle_candidates(llama_context * ctx, llama_sampler * chain, int32_t row, llama_token_data * out);
}
