// eagle_features.h: the residual stream of a target, by boundary. Boundary k is the state that enters block k, 0-based;
// boundary 0 is the embeddings, boundary n_layer the state after the last block. Compiled into libllama; conventions as
// in eagle.h.

#pragma once

#include <stdint.h>

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// 1 if the target's graph publishes boundary `il`, 0 if it does not or the target has no such block. ctx must not be
// null.
LLAMA_API int32_t eagle_target_publishes_layer(const struct llama_context * ctx, int32_t il);

// Switches the capture of boundary `il` on or off. EAGLE_ERR_INCOMPATIBLE, with the architecture's name in
// eagle_last_error(), when the target does not publish it; llama_set_embeddings_layer_inp would abort at the next
// decode.
LLAMA_API int32_t eagle_capture_layer(struct llama_context * ctx, int32_t il, bool enable);

// Rows [n_tokens, n_embd] of a captured boundary, one for each token of the last batch given to llama_decode. Null when
// the boundary is not captured, or only for a session (eagle.h), which reads it on its device. Valid until the next
// decode; call it only after a decode that followed the capture.
LLAMA_API const float * eagle_layer_rows(struct llama_context * ctx, int32_t il);

#ifdef __cplusplus
}
#endif
