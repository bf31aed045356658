#include "eagle_decode.h"

#include "eagle.h"
#include "eagle_arguments.h"
#include "eagle_interrupt.h"
#include "eagle_lost_server.h"

namespace eagle {

void decode(llama_context & ctx, const llama_batch & batch, bool may_stop) {
    const Interruptible heard(ctx, may_stop);
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
}

}  // namespace eagle

int32_t eagle_decode(struct llama_context * ctx, const struct llama_batch * batch, int32_t may_stop, int32_t * n_done) {
    return eagle::guarded("eagle_decode", [&] {
        eagle::require(ctx, "ctx");
        eagle::require(batch, "batch");
        eagle::require(n_done, "n_done");
        eagle::decode(*ctx, *batch, may_stop != 0);
        *n_done = batch->n_tokens;
    });
}
