#include "eagle_draft_kinds.h"

#include <cstdlib>

#include "eagle3_model.h"
#include "eagle_dflash_model.h"
#include "eagle_error.h"
#include "eagle_mtp_model.h"
#include "llama-context.h"
#include "llama-model.h"

namespace eagle {

namespace {

constexpr const char * TRAINED_LENGTH = "llama_eagle.trained_length";  // key of the trainer
constexpr int64_t USUAL_LENGTH = 2048;  // of published drafts, whose files do not name it

std::unique_ptr<DraftModel> read_kind(const llama_model & draft, const llama_context & target);

}  // namespace

bool is_known_draft(const llama_model & draft) {
    return draft.arch == LLM_ARCH_EAGLE3 || draft.arch == LLM_ARCH_DFLASH || draft.arch == LLM_ARCH_GEMMA4_ASSISTANT ||
           MtpModel::runs(draft.arch);
}

// A head is trained with its target, whose limit applies.
std::unique_ptr<DraftModel> read_draft_model(const llama_model & draft, const llama_context & target) {
    std::unique_ptr<DraftModel> model = read_kind(draft, target);
    const auto found = draft.gguf_kv.find(TRAINED_LENGTH);
    const int64_t usual = MtpModel::runs(draft.arch) ? model->n_ctx_train : USUAL_LENGTH;
    const int64_t known = found == draft.gguf_kv.end() ? 0 : std::atoll(found->second.c_str());
    model->n_trained = known > 0 ? known : usual;
    return model;
}

namespace {

std::unique_ptr<DraftModel> read_kind(const llama_model & draft, const llama_context & target) {
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

}  // namespace

}  // namespace eagle
