#include "eagle_assistant_model.h"

#include <algorithm>

#include "eagle_error.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

namespace eagle {

namespace {

[[noreturn]] void incompatible(const std::string & what) {
    throw Error(EAGLE_ERR_INCOMPATIBLE, what + ": use the assistant of this target");
}

// The last two layers of the target have the keys and values that the draft reads: those of a window, then all.
// Returns the draft if it fits the target.
const llama_model & require_fit(const llama_model & draft, const llama_model & target) {
    const llama_hparams &own = draft.hparams, &tgt = target.hparams;
    if (target.arch != LLM_ARCH_GEMMA4) {
        throw Error(EAGLE_ERR_INCOMPATIBLE,
                    format("the draft is an assistant of Gemma 4, the target a %s model", target.arch_name().c_str()));
    }
    if (own.n_embd_inp() != tgt.n_embd || own.n_embd_out() != tgt.n_embd) {
        incompatible(format("the draft reads states of width %u, the target has %u", own.n_embd_inp(), tgt.n_embd));
    }
    if (draft.vocab.n_tokens() != target.vocab.n_tokens()) {
        incompatible(format("the draft has %u tokens, the target %u", draft.vocab.n_tokens(), target.vocab.n_tokens()));
    }
    const uint32_t n = tgt.n_layer();
    if (n < 2 || tgt.is_swa(n - 1) || !tgt.is_swa(n - 2)) {
        incompatible("the target does not end with a layer of a sliding window and one without");
    }
    for (uint32_t il = 0; il < own.n_layer_all; il++) {
        const uint32_t source = own.is_swa(il) ? n - 2 : n - 1;
        if (own.n_embd_head_k(il) != tgt.n_embd_head_k(source) || own.n_head_kv(il) != tgt.n_head_kv(source)) {
            incompatible(format("layer %u of the draft reads %u heads of %u, the target has %u of %u", il,
                                own.n_head_kv(il), own.n_embd_head_k(il), tgt.n_head_kv(source),
                                tgt.n_embd_head_k(source)));
        }
    }
    return draft;
}

}  // namespace

AssistantModel::AssistantModel(const llama_model & draft, llama_context & target, const DraftParams & params)
    : StepModel(require_fit(draft, target.get_model()), draft.vocab, params),
      n_embd_(target.get_model().hparams.n_embd) {
    make_context(target, params);
}

// Everything about the memory is the target's, because it is the target's.
void AssistantModel::make_context(llama_context & target, const DraftParams & params) {
    const llama_cparams & of_target = target.get_cparams();
    llama_context_params p = llama_context_default_params();
    p.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    p.ctx_other = &target;
    p.n_ctx = llama_n_ctx(&target);
    p.n_seq_max = of_target.n_seq_max;
    p.n_batch = p.n_ubatch = p.n_outputs_max = p.n_seq_max;
    p.n_threads = p.n_threads_batch = params.n_threads;
    p.flash_attn_type = of_target.flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.offload_kqv = of_target.offload_kqv;
    p.kv_unified = of_target.kv_unified;
    p.no_perf = true;
    ctx_.reset(llama_init_from_model(const_cast<llama_model *>(&model_), p));
    if (!ctx_) {
        throw Error(EAGLE_ERR_MEMORY, "no context for the draft");
    }
    llama_set_embeddings_nextn(ctx_.get(), true, true);
    ctx_->device_logits.wanted = true;
}

// Evaluates one row of each part, the last token or the one drafted last, and reads the states for the next step.
std::vector<int32_t> AssistantModel::evaluate(const std::vector<Part> & parts, int32_t step) {
    std::vector<Row> rows;
    std::vector<int32_t> outputs;
    for (const Part & part : parts) {
        outputs.push_back((int32_t) rows.size());
        rows.push_back({step == 0 ? part.id_last : part.out.ids[step - 1], part.seq, part.pos, true});
    }
    decode(rows, states_.data());
    for (size_t i = 0; i < parts.size(); i++) {
        const float * state = llama_get_embeddings_nextn_ith(ctx_.get(), (int32_t) i);
        if (!state) {
            throw Error(EAGLE_ERR_INTERNAL, "the draft has no state for its next step");
        }
        std::copy_n(state, n_embd_, states_.begin() + (int64_t) i * n_embd_);
    }
    drafted_states_.insert(drafted_states_.end(), states_.begin(), states_.begin() + n_embd_);
    return outputs;
}

void AssistantModel::draft(std::vector<Part> & parts, int32_t n_steps, float p_min) {
    drafted_states_.clear();
    states_.clear();
    std::vector<Proposal *> proposals;
    for (Part & part : parts) {
        states_.insert(states_.end(), part.state, part.state + n_embd_);
        proposals.push_back(&part.out);
    }
    StepModel::draft(proposals, n_steps, p_min, [&](int32_t step) { return evaluate(parts, step); });
}

void AssistantModel::read_state(int32_t step, float * state) const {
    std::copy_n(drafted_states_.begin() + step * n_embd_, n_embd_, state);
}

}  // namespace eagle
