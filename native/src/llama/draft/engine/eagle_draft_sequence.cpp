#include "eagle_draft_sequence.h"

#include "eagle_draft_device.h"
#include "eagle_draft_model.h"
#include "eagle_draft_params.h"
#include "eagle_error.h"
#include "ggml-alloc.h"

namespace eagle {

DraftSequence::DraftSequence(const DraftModel & model, const DraftParams & params, DraftDevice & device)
    : ctx(context_for(2 * model.n_layer)),
      features(device.backend(), {model.n_states(), model.n_embd_tgt, params.n_rows_pending, params.n_rows_staged}) {
    memory.n_ctx = params.n_slots;
    memory.n_window = (int32_t) std::min<int64_t>(params.n_ctx, model.n_ctx_train);
    for (int64_t il = 0; il < model.n_layer; il++) {
        for (auto * side : {&memory.k, &memory.v}) {
            const int64_t width = model.n_head_dim * model.n_head_kv;
            side->push_back(ggml_new_tensor_2d(ctx.get(), params.type_kv, width, memory.n_ctx));
        }
    }
    buffer.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), device.backend()));
    if (!buffer) {
        throw Error(EAGLE_ERR_MEMORY, "no memory for the draft's keys and values");
    }
    ggml_backend_buffer_clear(buffer.get(), 0);
}

}  // namespace eagle
