#include "eagle_small_head.h"

#include <algorithm>
#include <cmath>

#include "eagle_error.h"
#include "eagle_first_maximum.h"
#include "ggml-backend.h"
#include "llama-model.h"

namespace eagle {

namespace {

// Returns the probability of the largest logit.
float probability(const float * logits, int64_t n, float largest) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        sum += std::exp(logits[i] - largest);
    }
    return 1.0f / sum;
}

}  // namespace

SmallHead::SmallHead(const llama_model & draft, const llama_vocab & vocab, int32_t n_vocab, const DraftParams & params)
    : draft_(const_cast<llama_model &>(draft)), whole_(draft.output) {
    rows_.kind = "small model";
    rows_.n_vocab = rows_.n_vocab_draft = n_vocab;
    rows_.output = whole_;
    if (params.n_vocab_draft == 0 || params.n_vocab_draft >= n_vocab || !whole_ || draft.output_b || draft.output_s) {
        return;
    }
    if (whole_->ne[1] < n_vocab) {
        throw Error(EAGLE_ERR_STATE, "another session drafts with this model and a part of its head: load it again");
    }
    const ggml_backend_ptr backend(ggml_backend_dev_init(draft.dev_output(), nullptr));
    if (!backend) {
        throw Error(EAGLE_ERR_MEMORY, "cannot start the draft's device");
    }
    following_ = std::make_unique<FollowingHead>(rows_, WeightRows(*whole_, params.path_dft), vocab, backend.get(),
                                                 FollowingParams{params.n_vocab_draft, params.base_ids});
    ggml_backend_buffer_set_usage(rows_.output->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    draft_.output = rows_.output;
}

SmallHead::~SmallHead() {
    draft_.output = whole_;
}

double SmallHead::bytes_saved() const {
    return following_ ? (double) ggml_nbytes(whole_) - (double) ggml_nbytes(rows_.output) : 0.0;
}

llama_token SmallHead::best(const float * logits, float * prob) const {
    const int64_t row = first_maximum(logits, n_rows());
    if (!std::isfinite(logits[row])) {
        throw Error(EAGLE_ERR_COMPUTE, "the draft's logits are no numbers");
    }
    if (prob) {
        *prob = probability(logits, n_rows(), logits[row]);
    }
    return token((int32_t) row);
}

void SmallHead::note_used_tokens(const llama_token * ids, int32_t n) {
    if (!following_) {
        return;
    }
    std::vector<llama_token> known;
    std::copy_if(ids, ids + n, std::back_inserter(known),
                 [&](llama_token id) { return id >= 0 && id < (llama_token) rows_.n_vocab; });
    following_->note_used_tokens(known.data(), (int32_t) known.size());
}

}  // namespace eagle
