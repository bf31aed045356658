// eagle_info.h: devices and sizes of loaded models. Part of the C interface; conventions as in eagle.h.

#pragma once

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// HOST:PORT of an RPC server that ctx uses and that has disconnected, "" if none has. The contents of such a context
// are lost; load its model again. Valid as long as the context.
LLAMA_API const char * eagle_lost_server(const struct llama_context * ctx);

// Device of layer 0..llama_model_n_layer(model); the last number is the output head. Null for other numbers.
LLAMA_API ggml_backend_dev_t eagle_layer_device(const struct llama_model * model, int32_t layer);

// Bytes of weights that a decode of n_rows rows reads; for experts, the expected number of distinct ones. 0 if model is
// null or n_rows is 0.
LLAMA_API double eagle_bytes_read(const struct llama_model * model, int32_t n_rows);

#ifdef __cplusplus
}
#endif
