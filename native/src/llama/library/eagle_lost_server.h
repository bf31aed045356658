// RPC servers that are gone, as libllama sees them: by the backends of a context, whose library may be loaded at run
// time or not at all.
#pragma once

#include "ggml-backend.h"

struct llama_context;

// What a decode came to: `status`, or -3 when it used a server that is gone, whose results read as zeros.
int eagle_unless_lost(llama_context & ctx, int status);

namespace eagle {

// Throw EAGLE_ERR_COMPUTE when a server is gone: after reading what was computed there.
void require_server(ggml_backend_t backend);
void require_servers(const llama_context & ctx);

}  // namespace eagle
