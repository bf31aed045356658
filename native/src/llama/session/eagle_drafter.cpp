#include "eagle_drafter.h"

#include "eagle_assistant_drafter.h"
#include "eagle_draft_kinds.h"
#include "eagle_feature_drafter.h"
#include "eagle_session.h"
#include "eagle_small_drafter.h"
#include "llama-context.h"
#include "llama-model.h"

namespace eagle {

namespace {

// Returns true for a whole model that drafts by itself, which may have an MTP head of its own.
bool is_small_model(const llama_model & draft, const llama_model & target) {
    if (!is_known_draft(draft)) {
        return true;
    }
    if (&draft == &target || draft.arch == LLM_ARCH_EAGLE3 || draft.arch == LLM_ARCH_DFLASH || !draft.tok_embd) {
        return false;
    }
    const auto &own = draft.hparams, &of_target = target.hparams;
    const bool has_head = own.n_layer_nextn > 0 && draft.layers[own.n_layer()].nextn.eh_proj;
    return !has_head || draft.arch != target.arch || own.n_embd != of_target.n_embd ||
           own.n_layer() != of_target.n_layer();
}

}  // namespace

int32_t n_confident(const float * probs, int32_t n, float p_min) {
    float confidence = 1.0f;
    for (int32_t i = 0; i < n; i++) {
        confidence *= probs[i];
        if (confidence < p_min) {
            return i;
        }
    }
    return n;
}

std::unique_ptr<Drafter> make_drafter(llama_context & ctx, const llama_model & draft,
                                      const eagle_session_params & params, int32_t n_seq) {
    const DraftParams p = draft_params(&ctx, params);
    if (draft.arch == LLM_ARCH_GEMMA4_ASSISTANT) {
        return std::make_unique<AssistantDrafter>(ctx, draft, p);
    }
    if (is_small_model(draft, ctx.get_model())) {
        return std::make_unique<SmallDrafter>(ctx, draft, p, n_seq, params.n_draft_max);
    }
    return std::make_unique<FeatureDrafter>(ctx, draft, p);
}

}  // namespace eagle
