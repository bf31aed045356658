#include "eagle_small_model.h"

#include <algorithm>

#include "eagle_error.h"
#include "eagle_small_vocabulary.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-model.h"

namespace eagle {

namespace {

[[noreturn]] void incompatible(const std::string & what) {
    throw Error(EAGLE_ERR_INCOMPATIBLE, what);
}

// Returns the draft if it fits the target.
const llama_model & require_fit(const llama_model & draft, const llama_model & target) {
    if (&draft == &target) {
        incompatible("the target cannot draft for itself: a draft is a smaller model, or an MTP head");
    }
    if (llama_model_has_encoder(&draft) || !llama_model_has_decoder(&draft) || !draft.hparams.causal_attn ||
        llama_model_is_diffusion(&draft)) {
        incompatible(
            format("the draft is a %s model, which does not generate text token by token", draft.arch_name().c_str()));
    }
    const std::string difference = vocabulary_difference(target.vocab, draft.vocab);
    if (!difference.empty()) {
        incompatible(difference + ": use a draft of the target's family");
    }
    return draft;
}

const llama_vocab & smaller(const llama_vocab & a, const llama_vocab & b) {
    return a.n_tokens() <= b.n_tokens() ? a : b;
}

size_t n_equal(const std::vector<llama_token> & a, const std::vector<llama_token> & b) {
    const size_t n = std::min(a.size(), b.size());
    return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
}

}  // namespace

SmallModel::SmallModel(const llama_model & draft, const llama_context & target, const DraftParams & params,
                       int32_t n_seq, int32_t n_draft_max)
    : StepModel(require_fit(draft, target.get_model()), smaller(draft.vocab, target.get_model().vocab), params),
      n_ctx_((int32_t) std::min<int64_t>(params.n_ctx, draft.hparams.n_ctx_train)),
      n_draft_max_(n_draft_max),
      n_known_((int32_t) draft.vocab.n_tokens()),
      recurrent_(llama_model_is_recurrent(&draft) || llama_model_is_hybrid(&draft)),
      memory_(n_seq) {
    make_context(target, params, n_seq);
}

// The threads are those of the target: ggml-cpu's teams belong to the process.
void SmallModel::make_context(const llama_context & target, const DraftParams & params, int32_t n_seq) {
    const uint32_t n_round = (uint32_t) n_draft_max_ + 2;
    llama_context_params p = llama_context_default_params();
    p.n_ctx = ((uint32_t) n_ctx_ + n_round) * n_seq;
    p.n_batch = p.n_ubatch = std::max((uint32_t) params.n_rows_staged, n_round * n_seq);
    p.n_seq_max = (uint32_t) n_seq;
    p.n_outputs_max = (uint32_t) n_seq;
    p.n_rs_seq = recurrent_ ? (uint32_t) n_draft_max_ : 0;
    p.n_threads = p.n_threads_batch = params.n_threads;
    p.type_k = p.type_v = params.type_kv;
    p.kv_unified = target.get_cparams().kv_unified;
    p.no_perf = true;
    ctx_.reset(llama_init_from_model(const_cast<llama_model *>(&model_), p));
    if (!ctx_) {
        throw Error(EAGLE_ERR_MEMORY, format("no context of %u tokens for the draft", p.n_ctx));
    }
    if (llama_n_rs_seq(ctx_.get()) < p.n_rs_seq) {
        incompatible(format("the recurrent state of a %s model cannot be rolled back: use another draft",
                            model_.arch_name().c_str()));
    }
    n_batch_ = (int32_t) p.n_batch;
    ctx_->device_logits.wanted = true;
}

void SmallModel::note_sliding() {
    if (notice_.empty()) {
        notice_ = sliding_notice(n_ctx_);
        LLAMA_LOG_WARN("%s\n", notice_.c_str());
    }
}

int32_t SmallModel::n_missing(int32_t seq, const std::vector<llama_token> & text) const {
    return (int32_t) (text.size() - n_equal(memory_[seq], text));
}

void SmallModel::clear(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(ctx_.get()), seq, -1, -1);
    memory_[seq].clear();
}

// Keeps the first n rows, or none if a recurrent state cannot be rolled back that far, or if the memory lacks what a
// sliding window reads before row n: a saved state has the window of its own end alone.
void SmallModel::truncate(int32_t seq, int32_t n) {
    if (n >= (int32_t) memory_[seq].size()) {
        return;
    }
    const llama_memory_t memory = llama_get_memory(ctx_.get());
    const int32_t window = llama_model_n_swa(&model_);
    if ((window > 0 && llama_memory_seq_pos_min(memory, seq) > std::max(0, n - window)) ||
        !llama_memory_seq_rm(memory, seq, n, -1)) {
        return clear(seq);
    }
    memory_[seq].resize(n);
}

// Evaluates tokens at the ends of the memories, which are empty after an error.
void SmallModel::append(const std::vector<Added> & tokens) {
    std::vector<Row> rows;
    for (const Added & token : tokens) {
        rows.push_back({token.id, token.seq, (llama_pos) memory_[token.seq].size(), token.has_output});
        memory_[token.seq].push_back(token.id);
    }
    try {
        decode(rows);
    } catch (...) {
        for (const Row & row : rows) {
            clear(row.seq);
        }
        throw;
    }
}

void SmallModel::evaluate(int32_t seq, const std::vector<llama_token> & text) {
    truncate(seq, (int32_t) n_equal(memory_[seq], text));
    while (memory_[seq].size() < text.size()) {
        const size_t first = memory_[seq].size(), n = std::min(text.size() - first, (size_t) n_batch_);
        std::vector<Added> rows;
        for (size_t i = first; i < first + n; i++) {
            rows.push_back({text[i], seq, false});
        }
        append(rows);
    }
}

// Evaluates what the memories lack of the texts. Returns the rows of the last tokens, which are always evaluated. All
// outputs are in one graph, so the sequences have equally many rows.
std::vector<int32_t> SmallModel::decode_texts(const std::vector<Part> & parts) {
    size_t n_most = 0, n_least = SIZE_MAX;
    for (const Part & part : parts) {
        const size_t n = std::min(n_equal(memory_[part.seq], part.text), part.text.size() - 1);
        truncate(part.seq, (int32_t) n);
        const size_t n_missing = part.text.size() - memory_[part.seq].size();
        n_most = std::max(n_most, n_missing);
        n_least = std::min(n_least, n_missing);
    }
    std::vector<Added> rows;
    std::vector<int32_t> outputs;
    for (const Part & part : parts) {
        if (n_most != n_least || n_most * parts.size() > (size_t) n_batch_) {
            evaluate(part.seq, {part.text.begin(), part.text.end() - 1});
        }
        for (size_t i = memory_[part.seq].size(); i < part.text.size(); i++) {
            rows.push_back({part.text[i], part.seq, i + 1 == part.text.size()});
        }
        outputs.push_back((int32_t) rows.size() - 1);
    }
    append(rows);
    return outputs;
}

// Evaluates the token drafted last. A recurrent state can undo the rows of its last decode only, so there all drafted
// tokens are evaluated together: they cost little more than one.
std::vector<int32_t> SmallModel::decode_drafted(const std::vector<Part> & parts, int32_t n_drafted) {
    std::vector<Added> rows;
    std::vector<int32_t> outputs;
    for (const Part & part : parts) {
        if (recurrent_) {
            evaluate(part.seq, part.text);
        }
        const int32_t n_held = (int32_t) (memory_[part.seq].size() - part.text.size());
        for (int32_t i = n_held; i < n_drafted; i++) {
            rows.push_back({part.out.ids[i], part.seq, i + 1 == n_drafted});
        }
        outputs.push_back((int32_t) rows.size() - 1);
    }
    append(rows);
    return outputs;
}

void SmallModel::draft(std::vector<Part> & parts, int32_t n_steps, float p_min) {
    std::vector<Proposal *> proposals;
    for (Part & part : parts) {
        proposals.push_back(&part.out);
    }
    StepModel::draft(proposals, n_steps, p_min,
                     [&](int32_t step) { return step == 0 ? decode_texts(parts) : decode_drafted(parts, step); });
}

int64_t SmallModel::state_size(int32_t seq, const std::vector<llama_token> & text) {
    truncate(seq, (int32_t) n_equal(memory_[seq], text));
    return (int64_t) llama_state_seq_get_size(ctx_.get(), seq);
}

void SmallModel::save_state(int32_t seq, char * data, int64_t size) {
    if ((int64_t) llama_state_seq_get_data(ctx_.get(), (uint8_t *) data, (size_t) size, seq) != size) {
        throw Error(EAGLE_ERR_INTERNAL, "the draft's memory cannot be saved");
    }
}

bool SmallModel::load_state(int32_t seq, const char * data, int64_t size, std::vector<llama_token> text) {
    clear(seq);
    const bool is_read =
        (int64_t) llama_state_seq_set_data(ctx_.get(), (const uint8_t *) data, (size_t) size, seq) == size;
    if (!is_read || llama_memory_seq_pos_max(llama_get_memory(ctx_.get()), seq) + 1 != (llama_pos) text.size()) {
        clear(seq);
        return false;
    }
    memory_[seq] = std::move(text);
    return true;
}

}  // namespace eagle
