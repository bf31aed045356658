// eagle_testing.h: what only tests call. Compiled into libllama; conventions as in eagle.h. Not a public interface.

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// The two likeliest tokens of output row `row` of the last decode (-1: the last one), and the gap between their logits.
// ids[0] is the greedy choice, the lowest id among equal logits. Where a third token has the logit of ids[1], a GPU may
// name either.
LLAMA_API int32_t eagle_choice(struct llama_context * ctx, int32_t row, llama_token ids[2], float * gap);

#ifdef __cplusplus
}
#endif
