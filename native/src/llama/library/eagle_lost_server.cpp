#include "eagle_lost_server.h"

#include "eagle_error.h"
#include "eagle_info.h"
#include "llama-context.h"

namespace {

using LostServer = const char *(ggml_backend_t);

// Returns the function of ggml-rpc, null for other backends.
LostServer * lost_server_function(ggml_backend_t backend) {
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    ggml_backend_reg_t reg = device ? ggml_backend_dev_backend_reg(device) : nullptr;
    return reg ? (LostServer *) ggml_backend_reg_get_proc_address(reg, "eagle_rpc_lost_server") : nullptr;
}

// Returns the first backend for which `condition` is true.
template <typename Condition>
ggml_backend_t find_backend(const llama_context & ctx, Condition condition) {
    ggml_backend_sched_t sched = ctx.get_sched();
    for (int i = 0; sched && i < ggml_backend_sched_get_n_backends(sched); i++) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        if (condition(backend)) {
            return backend;
        }
    }
    return nullptr;
}

const char * lost_server(ggml_backend_t backend) {
    auto * function = backend ? lost_server_function(backend) : nullptr;
    return function ? function(backend) : nullptr;
}

}  // namespace

int eagle_unless_lost(llama_context & ctx, int status) {
    if (status != 0 || !find_backend(ctx, lost_server_function)) {
        return status;
    }
    ctx.synchronize();  // logits may still be copied
    return find_backend(ctx, lost_server) ? -3 : status;
}

const char * eagle_lost_server(const llama_context * ctx) {
    const char * server = ctx ? lost_server(find_backend(*ctx, lost_server)) : nullptr;
    return server ? server : "";
}

void eagle::require_server(ggml_backend_t backend) {
    if (const char * server = lost_server(backend)) {
        throw Error(EAGLE_ERR_COMPUTE, format("the RPC server %s is gone: load the model again", server));
    }
}

void eagle::require_servers(const llama_context & ctx) {
    require_server(find_backend(ctx, lost_server));
}
