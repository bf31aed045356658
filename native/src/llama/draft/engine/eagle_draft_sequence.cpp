#include "eagle_draft_sequence.h"

#include "eagle_draft_device.h"
#include "eagle_draft_model.h"
#include "eagle_draft_params.h"

namespace eagle {

DraftSequence::DraftSequence(const DraftModel & model, const DraftParams & params, int64_t n_ctx, DraftDevice & device)
    : ctx(context_for(2 * model.n_layer)),
      features(device.backend(), {model.n_states(), model.n_embd_tgt, params.n_rows_pending, params.n_rows_staged}) {
    memory.n_ctx = n_ctx;
    for (int64_t il = 0; il < model.n_layer; il++) {
        for (auto * side : {&memory.k, &memory.v}) {
            const int64_t width = model.n_head_dim * model.n_head_kv;
            side->push_back(ggml_new_tensor_2d(ctx.get(), params.type_kv, width, n_ctx));
            device.allocate(side->back());
        }
    }
}

}  // namespace eagle
