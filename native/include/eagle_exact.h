// eagle_exact.h: exact verification. Part of the C interface, see eagle.h for its conventions.
//
// Exact means: the logits of a token have the same bits whether it is decoded alone or at any place of a batch of up to
// EAGLE_EXACT_MAX_ROWS tokens, on any number of threads. Greedy speculative output is then plain decoding's, token by
// token. Prompts in larger batches go their usual way, and are the same with and without a draft. CPU kernels are on by
// default; those of CUDA only when asked for by eagle_exact_set or the environment, until they have run on a GPU.

#pragma once

#include "eagle.h"

#define EAGLE_EXACT_MAX_ROWS 72  // eight sequences with a draft of 8 and the token before it

#ifdef __cplusplus
extern "C" {
#endif

enum eagle_exact_mode {
    EAGLE_EXACT_OFF = 0,     // llama.cpp's own kernels
    EAGLE_EXACT_ON = 1,      // the default: ours wherever they can read the weights; on x86 AMX layouts are not offered
    EAGLE_EXACT_STRICT = 2,  // also refuses weight layouts that only inexact kernels read (KleidiAI)
};

// Process-wide; takes effect at the next decode. STRICT must be set before the first model is loaded, for ggml lists
// its weight layouts once: later it is EAGLE_ERR_STATE. The environment variable LLAMA_EAGLE_EXACT (off, on, strict)
// gives the mode at start.
LLAMA_API int32_t eagle_exact_set(int32_t mode);
LLAMA_API int32_t eagle_exact_get(void);

// What a model's weights allow, as one JSON object: {"exact": bool, "mode": "off" | "on" | "strict", "inexact":
// [{"where": buffer, "type": type, "tensors": count, "why": text}], "unverified": likewise}. "unverified" are weights
// whose kernels are meant to be exact but have never been seen to be. "exact" is true when the mode is not off and both
// lists are empty. Attention on the CPU is exact for every cache type. Returns the length without the final 0, or minus
// an eagle_status; writes at most size bytes.
LLAMA_API int32_t eagle_exact_report(const struct llama_model * model, char * json, size_t size);

// The same for devices: [{"device": name, "exact": bool, "why": text, empty if exact}].
LLAMA_API int32_t eagle_exact_devices(char * json, size_t size);

#ifdef __cplusplus
}
#endif
