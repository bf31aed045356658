#include "eagle_draft_kinds.h"

#include "eagle3_model.h"
#include "eagle_dflash_model.h"
#include "eagle_error.h"
#include "eagle_mtp_model.h"
#include "llama-context.h"
#include "llama-model.h"

namespace eagle {

bool is_known_draft(const llama_model & draft) {
    return draft.arch == LLM_ARCH_EAGLE3 || draft.arch == LLM_ARCH_DFLASH || draft.arch == LLM_ARCH_GEMMA4_ASSISTANT ||
           MtpModel::runs(draft.arch);
}

std::unique_ptr<DraftModel> read_draft_model(const llama_model & draft, const llama_context & target) {
    if (draft.arch == LLM_ARCH_EAGLE3) {
        return std::make_unique<Eagle3Model>(draft, target.get_model());
    }
    if (draft.arch == LLM_ARCH_DFLASH) {
        return std::make_unique<DFlashModel>(draft, target.get_model());
    }
    if (MtpModel::runs(draft.arch)) {
        return std::make_unique<MtpModel>(draft, target);
    }
    throw Error(EAGLE_ERR_INCOMPATIBLE, format("the draft's architecture is %s: drafts are of eagle3, dflash or "
                                               "gemma4-assistant, or the next-token-prediction "
                                               "head of a qwen35, qwen35moe or qwen3next model",
                                               draft.arch_name().c_str()));
}

}  // namespace eagle
