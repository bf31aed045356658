#include "eagle_draft_weights.h"

#include <algorithm>

#include "eagle_error.h"
#include "eagle_weight_file.h"
#include "ggml-backend.h"
#include "llama-model.h"

namespace eagle {

namespace {

constexpr size_t COPY_BYTES = 16 << 20;

}  // namespace

DraftWeights::DraftWeights(DraftModel & model, const llama_model & draft, const DraftParams & params,
                           DraftDevice & device)
    : model_(model), draft_(draft), params_(params), device_(device), ctx_(context_for(64 * model.n_layer + 64)) {
    trim_head();
    for (const auto & some : {model_.weights(), model_.tables()}) {
        for (ggml_tensor ** weight : some) {
            copy_to_device(*weight);
        }
    }
    if (model_.block.n_max > 0) {  // embeds no drafted tokens
        make_index();
    } else {
        make_embeddings();
    }
}

// A draft may share the target's head, which is in the target's file.
const char * DraftWeights::path_of(const ggml_tensor & weight) const {
    const bool own = draft_.get_tensor(weight.name) != nullptr;
    return own && params_.path_dft ? params_.path_dft : params_.path_tgt;
}

WeightRows DraftWeights::open(const ggml_tensor & weight) const {
    try {
        return {weight, path_of(weight)};
    } catch (const std::runtime_error & error) {
        throw Error(EAGLE_ERR_INCOMPATIBLE,
                    format("%s, which the draft on %s needs, is repacked in the memory of %s and has to be read from "
                           "the model's file: %s. Pass the file that the model was loaded from, or load the draft "
                           "there too (draft_gpu_layers 0)",
                           weight.name, device_.name(),
                           ggml_backend_buft_name(ggml_backend_buffer_get_type(weight.buffer)), error.what()));
    }
}

// Weights are on another device than the draft's blocks after a partial offload, or if the target owns them.
void DraftWeights::copy_to_device(ggml_tensor *& weight) {
    if (!weight || device_.can_read(*weight)) {
        return;
    }
    const std::vector<char> data = open(*weight).read_all();
    weight = ggml_dup_tensor(ctx_.get(), weight);
    device_.allocate(weight);
    ggml_backend_tensor_set(weight, data.data(), 0, data.size());
}

void DraftWeights::trim_head() {
    if (!model_.can_trim || params_.n_vocab_draft == 0 ||
        FollowingHead::rounded(params_.n_vocab_draft) >= model_.n_vocab_draft) {
        return;
    }
    trimmed_head_ = std::make_unique<FollowingHead>(model_, open(*model_.output), draft_.vocab, device_.backend(),
                                                    FollowingParams{params_.n_vocab_draft, params_.base_ids});
}

// llama.cpp keeps token_embd in host memory. On a GPU the draft reads the rows of its own or the target's head, if that
// was loaded from the same tensor; otherwise it gets a copy of the rows of its vocabulary.
void DraftWeights::make_embeddings() {
    ggml_tensor * all = model_.tok_embd;
    const bool is_readable = device_.can_read(*all);
    if (!is_readable && model_.tied) {
        embeddings_.table = model_.output;
        return;
    }
    if (!is_readable && model_.tied_head && device_.can_read(*model_.tied_head)) {
        all = model_.tied_head;
    }
    if (!device_.can_read(*all)) {
        embeddings_.table = ggml_new_tensor_2d(ctx_.get(), all->type, model_.n_embd, model_.n_vocab_draft);
        device_.allocate(embeddings_.table);
        copy_embeddings();
        return;
    }
    embeddings_.table = all;
    make_index();
}

void DraftWeights::make_index() {
    if (!model_.d2t_id.empty()) {
        embeddings_.index = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_I32, 1, model_.n_vocab_draft);
        device_.allocate(embeddings_.index);
        ggml_backend_tensor_set(embeddings_.index, model_.d2t_id.data(), 0, ggml_nbytes(embeddings_.index));
    }
}

// Copies many rows at a time, because copying one row to a GPU takes about as long as copying a megabyte.
void DraftWeights::copy_embeddings() {
    const size_t row_size = model_.tok_embd->nb[1];
    const int64_t n_rows = model_.n_vocab_draft, n_at_once = std::max<int64_t>(1, COPY_BYTES / row_size);
    std::vector<char> rows(std::min(n_rows, n_at_once) * row_size);
    for (int64_t first = 0; first < n_rows; first += n_at_once) {
        const int64_t n = std::min(n_at_once, n_rows - first);
        for (int64_t i = 0; i < n; i++) {
            const size_t from = model_.target_id((int32_t) (first + i)) * row_size;
            ggml_backend_tensor_get(model_.tok_embd, rows.data() + i * row_size, from, row_size);
        }
        ggml_backend_tensor_set(embeddings_.table, rows.data(), first * row_size, n * row_size);
    }
}

// The head's row `draft_id` belongs to another token now.
void DraftWeights::update_embedding(int32_t draft_id) {
    const int32_t id = model_.target_id(draft_id);
    if (embeddings_.table == model_.output) {
        return;
    }
    if (embeddings_.index) {
        ggml_backend_tensor_set(embeddings_.index, &id, draft_id * sizeof id, sizeof id);
        return;
    }
    std::vector<char> row(model_.tok_embd->nb[1]);
    ggml_backend_tensor_get(model_.tok_embd, row.data(), id * row.size(), row.size());
    ggml_backend_tensor_set(embeddings_.table, row.data(), draft_id * row.size(), row.size());
}

void DraftWeights::note_used_tokens(const llama_token * ids, int32_t n) {
    if (trimmed_head_) {
        for (int32_t row : trimmed_head_->note_used_tokens(ids, n)) {
            update_embedding(row);
        }
    }
}

}  // namespace eagle
