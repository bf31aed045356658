// Few candidates in the place of a whole row of logits.
#pragma once

#include <cstdint>

#include "llama.h"

extern "C" {

// The candidates of output row `row` that `chain` can tell from all of them, in out[n_vocab]: how many, and 0 where it
// needs all. What the chain makes of them is what it would make of the whole row.
LLAMA_API int32_t eagle_candidates(llama_context * ctx, llama_sampler * chain, int32_t row, llama_token_data * out);
}
