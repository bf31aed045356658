// eagle_exact.h: exact verification. Part of the C interface; conventions as in eagle.h.
//
// Exact: the logits of a token have the same bits whether it is decoded alone or at any place of a batch of up to
// EAGLE_EXACT_MAX_ROWS tokens, with any number of threads. Greedy speculative output is then identical to plain
// decoding. Larger batches (prompts) use llama.cpp's kernels, with the same result with and without a draft. The CPU
// kernels are on by default. Those of CUDA must be enabled by eagle_exact_set or the environment until they have been
// verified on a GPU.

#pragma once

#include "eagle.h"

#define EAGLE_EXACT_MAX_ROWS 72  // eight sequences with a draft of 8 and the token before it

#ifdef __cplusplus
extern "C" {
#endif

enum eagle_exact_mode {
    EAGLE_EXACT_OFF = 0,     // llama.cpp's own kernels
    EAGLE_EXACT_ON = 1,      // default: our kernels for all weights that they can read; no AMX layouts on x86
    EAGLE_EXACT_STRICT = 2,  // also refuses weight layouts that only inexact kernels can read (KleidiAI)
};

// Process-wide; takes effect at the next decode. STRICT must be set before the first model is loaded, because ggml
// lists its weight layouts once; after that it is EAGLE_ERR_STATE. The environment variable LLAMA_EAGLE_EXACT (off, on,
// strict) sets the initial mode.
LLAMA_API int32_t eagle_exact_set(int32_t mode);
LLAMA_API int32_t eagle_exact_get(void);

// Reports whether a model's weights are computed exactly, as one JSON object: {"exact": bool, "mode": "off" | "on" |
// "strict", "inexact": [{"where": buffer, "type": type, "tensors": count, "why": text}], "unverified": [same form]}.
// "unverified" lists weights whose kernels are designed to be exact but have not been tested on such a device. "exact"
// is true if the mode is not off and both lists are empty. Attention on the CPU is exact for every cache type. Returns
// the length without the terminating null, or minus an eagle_status; writes at most size bytes.
LLAMA_API int32_t eagle_exact_report(const struct llama_model * model, char * json, size_t size);

// Reports the devices as JSON: [{"device": name, "exact": bool, "why": text, empty if exact}]. Returns as above.
LLAMA_API int32_t eagle_exact_devices(char * json, size_t size);

#ifdef __cplusplus
}
#endif
