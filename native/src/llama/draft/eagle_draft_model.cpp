#include "eagle_draft_model.h"

#include <cstring>

#include "eagle_error.h"

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

}  // namespace eagle
