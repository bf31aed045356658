#include "eagle_step_model.h"

#include <algorithm>

#include "eagle_decode.h"
#include "eagle_error.h"
#include "eagle_info.h"
#include "llama-model.h"

namespace eagle {

StepModel::StepModel(const llama_model & draft, const llama_vocab & vocab, const DraftParams & params)
    : model_(draft), bytes_read_(eagle_bytes_read(&draft, 1)) {
    head_ = std::make_unique<SmallHead>(draft, vocab, (int32_t) vocab.n_tokens(), params);
    bytes_read_ -= head_->bytes_saved();
}

const char * StepModel::device() const {
    return ggml_backend_dev_name(model_.dev_output());
}

void StepModel::decode(const std::vector<Row> & rows, float * states) {
    const size_t n = rows.size();
    std::vector<llama_token> ids(n);
    std::vector<llama_pos> pos(n);
    std::vector<int32_t> n_seq(n, 1);
    std::vector<llama_seq_id> seq(n);
    std::vector<llama_seq_id *> seqs(n);
    std::vector<int8_t> outputs(n);
    for (size_t i = 0; i < n; i++) {
        ids[i] = rows[i].id;
        pos[i] = rows[i].pos;
        seq[i] = rows[i].seq;
        seqs[i] = &seq[i];
        outputs[i] = rows[i].has_output;
    }
    eagle::decode(*ctx_, {(int32_t) n, ids.data(), states, pos.data(), n_seq.data(), seqs.data(), outputs.data()},
                  false);
}

void StepModel::draft(const std::vector<Proposal *> & proposals, int32_t n_steps, float p_min,
                      const std::function<std::vector<int32_t>(int32_t)> & evaluate) {
    std::vector<float> confidence(proposals.size(), 1.0f);
    bool is_confident = !proposals.empty();
    logits_.clear();
    for (int32_t step = 0; step < n_steps && is_confident; step++) {
        const std::vector<int32_t> outputs = evaluate(step);
        is_confident = false;
        for (size_t i = 0; i < proposals.size(); i++) {
            Proposal & part = *proposals[i];
            const float * logits = llama_get_logits_ith(ctx_.get(), outputs[i]);
            if (!logits) {
                throw Error(EAGLE_ERR_INTERNAL, format("the draft has no logits in row %d", outputs[i]));
            }
            if (i == 0) {
                logits_.insert(logits_.end(), logits, logits + head_->n_rows());
            }
            float prob = 1.0f;
            part.ids[step] = head_->best(logits, part.probs || p_min > 0.0f ? &prob : nullptr);
            if (part.probs) {
                part.probs[step] = prob;
            }
            confidence[i] *= prob;
            if (confidence[i] >= p_min) {
                part.n_out = step + 1;
                is_confident = true;
            }
        }
    }
}

void StepModel::read_logits(int32_t step, float * logits) const {
    const size_t n_rows = (size_t) head_->n_rows();
    if (step < 0 || (size_t) (step + 1) * n_rows > logits_.size()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("step %d was not drafted", step));
    }
    if (logits) {
        std::copy_n(logits_.begin() + (size_t) step * n_rows, n_rows, logits);
    }
}

}  // namespace eagle
