// eagle_features.h: capture of a target's residual stream at block boundaries. Boundary k is the input of block k
// (0-based); boundary 0 is the embeddings, boundary n_layer the output of the last block. Conventions as in eagle.h.

#pragma once

#include <stdint.h>

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// Returns 1 if the target's graph publishes boundary `il`, 0 if it does not or has no such block. ctx must not be null.
LLAMA_API int32_t eagle_target_publishes_layer(const struct llama_context * ctx, int32_t il);

// Enables or disables the capture of boundary `il`. EAGLE_ERR_INCOMPATIBLE, with the architecture's name in
// eagle_last_error(), if the target does not publish it (llama_set_embeddings_layer_inp would abort at the next
// decode).
LLAMA_API int32_t eagle_capture_layer(struct llama_context * ctx, int32_t il, bool enable);

// Returns rows [n_tokens, n_embd] of a captured boundary, one for each token of the last llama_decode. Null if the
// boundary is not captured, or only by a session (eagle.h), which reads it on its device. Valid until the next decode.
// Call it only after a decode with the capture enabled.
LLAMA_API const float * eagle_layer_rows(struct llama_context * ctx, int32_t il);

#ifdef __cplusplus
}
#endif
