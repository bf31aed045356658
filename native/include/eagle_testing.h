// eagle_testing.h: functions for tests only, not a public interface. Compiled into libllama; conventions as in eagle.h.

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// The two most probable tokens of output row `row` of the last decode (-1: the last row), and the gap between their
// logits. ids[0] is the greedy choice, the lowest id among equal logits. If a third token has the same logit as ids[1],
// a GPU may return either of them.
LLAMA_API int32_t eagle_choice(struct llama_context * ctx, int32_t row, llama_token ids[2], float * gap);

// Sets the type of the draft's K and V memory, GGML_TYPE_F16 or GGML_TYPE_F32, for sessions and sets of drafts that
// this thread opens from now on. Default: F16.
LLAMA_API int32_t eagle_set_draft_kv_type(int32_t type);

// Number of the last rows of a text that the session's draft attends to: chosen by acceptance, or n from now on. 0: the
// draft has no such window.
LLAMA_API int32_t eagle_draft_window(const eagle_session * session);
LLAMA_API int32_t eagle_fix_draft_window(eagle_session * session, int32_t n);

#ifdef __cplusplus
}
#endif
