#include "eagle_decode.h"

#include "eagle_error.h"
#include "eagle_interrupt.h"
#include "eagle_lost_server.h"

namespace eagle {

void decode(llama_context & ctx, const llama_batch & batch, bool may_stop, Progress * progress) {
    if (progress) {
        progress->begin(ctx, batch.n_tokens);
    }
    const Interruptible interruptible(ctx, may_stop, progress);
    const int32_t rc = llama_decode(&ctx, batch);
    if (rc == 1) {
        throw Error(EAGLE_ERR_CONTEXT_FULL, format("llama_decode found no room for %d tokens", batch.n_tokens));
    }
    if (rc != 0) {
        require_servers(ctx);
        throw Error(rc == 2 ? EAGLE_ERR_ABORTED : EAGLE_ERR_COMPUTE,
                    format("llama_decode of %d tokens failed: %d", batch.n_tokens, rc));
    }
    llama_synchronize(&ctx);
    if (progress) {
        progress->end();
    }
}

}  // namespace eagle
