// Disconnected RPC servers of a context. ggml-rpc may be loaded at run time or not at all, so its functions are looked
// up by name.
#pragma once

#include "ggml-backend.h"

struct llama_context;

// Returns the status of a decode: -3 instead of `status` if an RPC server has disconnected, whose results read as
// zeros.
int eagle_unless_lost(llama_context & ctx, int status);

namespace eagle {

// Throw EAGLE_ERR_COMPUTE if a server has disconnected. Call them after reading results from it.
void require_server(ggml_backend_t backend);
void require_servers(const llama_context & ctx);

}  // namespace eagle
