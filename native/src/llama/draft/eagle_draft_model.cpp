#include "eagle_draft_model.h"

#include <cstring>

#include "eagle3_model.h"
#include "eagle_dflash_model.h"
#include "eagle_error.h"
#include "eagle_mtp_model.h"
#include "llama-context.h"
#include "llama-model.h"

namespace eagle {

bool DraftModel::are_tied(const ggml_tensor * embeddings, const ggml_tensor * head) {
    return std::strcmp(embeddings->name, head->name) == 0;
}

void DraftModel::read_d2t(const ggml_tensor * d2t) {
    if (n_vocab_draft != (d2t ? d2t->ne[0] : n_vocab)) {
        throw Error(EAGLE_ERR_INCOMPATIBLE,
                    format("the draft's head has %lld rows and no vocabulary map of that length: convert it again",
                           (long long) n_vocab_draft));
    }
    if (!d2t) {
        return;
    }
    if (d2t->type != GGML_TYPE_I64) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, "the draft's vocabulary map d2t is not I64: convert it again");
    }
    std::vector<int64_t> ids(n_vocab_draft);
    ggml_backend_tensor_get(d2t, ids.data(), 0, ggml_nbytes(d2t));
    d2t_id.reserve(ids.size());
    for (int64_t id : ids) {
        if (id < 0 || id >= n_vocab) {
            throw Error(EAGLE_ERR_INCOMPATIBLE, format("the draft's vocabulary map names token %lld of a target with "
                                                       "%lld",
                                                       (long long) id, (long long) n_vocab));
        }
        d2t_id.push_back((int32_t) id);
    }
}

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
