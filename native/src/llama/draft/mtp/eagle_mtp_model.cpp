#include "eagle_mtp_model.h"

#include <algorithm>
#include <limits>
#include <string>

#include "eagle_boundaries.h"
#include "eagle_error.h"
#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-model.h"

namespace eagle {

namespace {

[[noreturn]] void incompatible(const std::string & what) {
    throw Error(EAGLE_ERR_INCOMPATIBLE, what);
}

}  // namespace

bool MtpModel::runs(llm_arch arch) {
    return arch == LLM_ARCH_QWEN35 || arch == LLM_ARCH_QWEN35MOE || arch == LLM_ARCH_QWEN3NEXT;
}

MtpModel::MtpModel(const llama_model & draft, const llama_context & context) {
    const llama_model & target = context.get_model();
    kind = "MTP";
    states = {FINAL_NORM};
    lead = 1;
    norm_output = true;
    require_fit(draft, target);
    const int32_t il = (int32_t) draft.hparams.n_layer();
    const llama_layer & layer = draft.layers[il];
    device = draft.dev_layer(il);
    read_shapes(draft, target);
    read_block(layer);
    read_feed_forward(layer);
    read_vocabulary(draft, layer);
    read_rope(context);
}

void MtpModel::require_fit(const llama_model & draft, const llama_model & target) const {
    const auto & hparams = draft.hparams;
    if (draft.arch != target.arch) {
        incompatible(
            format("the draft is the MTP head of a %s model, the target is a %s model: use the head that was "
                   "trained with this target",
                   draft.arch_name().c_str(), target.arch_name().c_str()));
    }
    if (hparams.n_layer_nextn != 1) {
        incompatible(
            format("the draft has %u MTP blocks (%s.nextn_predict_layers), expected 1: convert the model "
                   "again with its MTP head, or use another draft",
                   hparams.n_layer_nextn, draft.arch_name().c_str()));
    }
    if (!draft.layers[hparams.n_layer()].nextn.eh_proj) {
        incompatible("the model was loaded without its MTP head: load it with load_mtp in llama_model_params");
    }
    if (hparams.n_embd != target.hparams.n_embd) {
        incompatible(format("the MTP head has hidden size %u, the target %u: use the head of this target",
                            hparams.n_embd, target.hparams.n_embd));
    }
    if (draft.vocab.n_tokens() != target.vocab.n_tokens()) {
        incompatible(format("the MTP head's file has %u tokens, the target %u: use the head of this target",
                            draft.vocab.n_tokens(), target.vocab.n_tokens()));
    }
}

void MtpModel::read_shapes(const llama_model & draft, const llama_model & target) {
    const auto & hparams = draft.hparams;
    const uint32_t il = hparams.n_layer();
    n_layer = 1;
    n_embd = n_embd_tgt = hparams.n_embd;
    n_vocab = target.vocab.n_tokens();
    n_head = hparams.n_head(il);
    n_head_kv = hparams.n_head_kv(il);
    n_head_dim = hparams.n_embd_head_k(il);
    n_ctx_train =
        std::numeric_limits<int32_t>::max();  // the block is part of the target, so the target's limit applies
    norm_eps = hparams.f_norm_rms_eps;
    n_expert = hparams.n_expert;
    n_expert_used = hparams.n_expert_used(il);
    expert_scale = hparams.expert_weights_scale;
}

void MtpModel::read_block(const llama_layer & l) {
    if (l.wqkv) {
        incompatible("the MTP block stores q, k and v as one tensor (attn_qkv): convert the model again");
    }
    enorm = l.nextn.enorm;
    hnorm = l.nextn.hnorm;
    eh_proj = {l.nextn.eh_proj, l.nextn.eh_proj_s};
    attn_norm = l.attn_norm;
    q_norm = l.attn_q_norm;
    k_norm = l.attn_k_norm;
    ffn_norm = l.attn_post_norm;
    weight_type = l.wq->type;
    wq = {l.wq, l.wq_s};
    wk = {l.wk, l.wk_s};
    wv = {l.wv, l.wv_s};
    wo = {l.wo, l.wo_s};
    if (l.wq->ne[1] != 2 * n_head * n_head_dim) {
        incompatible(
            format("the MTP block's attn_q has %lld rows, expected %lld: a query and a gate for each of %lld "
                   "heads",
                   (long long) l.wq->ne[1], (long long) (2 * n_head * n_head_dim), (long long) n_head));
    }
}

void MtpModel::read_feed_forward(const llama_layer & l) {
    dense = {{l.ffn_gate, l.ffn_gate_s}, {l.ffn_up, l.ffn_up_s}, {l.ffn_down, l.ffn_down_s}};
    router = l.ffn_gate_inp;
    experts = {
        {l.ffn_gate_exps, l.ffn_gate_exps_s}, {l.ffn_up_exps, l.ffn_up_exps_s}, {l.ffn_down_exps, l.ffn_down_exps_s}};
    gate_up = {l.ffn_gate_up_exps, l.ffn_up_exps_s};
    shared_gate = l.ffn_gate_inp_shexp;
    shared = {{l.ffn_gate_shexp, l.ffn_gate_shexp_s},
              {l.ffn_up_shexp, l.ffn_up_shexp_s},
              {l.ffn_down_shexp, l.ffn_down_shexp_s}};
}

// The norm before the head, the head and the embeddings are the model's, unless the block has its own.
void MtpModel::read_vocabulary(const llama_model & draft, const llama_layer & layer) {
    const auto & own = layer.nextn;
    output_norm = own.shared_head_norm ? own.shared_head_norm : draft.output_norm;
    output = own.shared_head_head ? own.shared_head_head : draft.output;
    output_scale = own.shared_head_head ? own.shared_head_head_s : draft.output_s;
    tok_embd = own.embed_tokens ? own.embed_tokens : draft.tok_embd;
    tied = are_tied(tok_embd, output);
    n_vocab_draft = output->ne[1];
    read_d2t(own.shared_head_head ? nullptr : draft.d2t);
}

// Uses the constants by which the target's context rotates its own blocks.
void MtpModel::read_rope(const llama_context & context) {
    const llama_model & target = context.get_model();
    const llama_cparams & cparams = context.get_cparams();
    rope.n_dims = (int) target.hparams.n_rot();
    rope.type = (int) llama_model_rope_type(&target);
    if (rope.type == GGML_ROPE_TYPE_MROPE || rope.type == GGML_ROPE_TYPE_IMROPE) {
        std::copy_n(target.hparams.rope_sections.begin(), rope.sections.size(), rope.sections.begin());
    }
    rope.n_ctx_orig = (int) cparams.n_ctx_orig_yarn;
    rope.freq_base = cparams.rope_freq_base;
    rope.freq_scale = cparams.rope_freq_scale;
    rope.ext_factor = cparams.yarn_ext_factor;
    rope.attn_factor = cparams.yarn_attn_factor;
    rope.beta_fast = cparams.yarn_beta_fast;
    rope.beta_slow = cparams.yarn_beta_slow;
    rope.factors = nullptr;
}

std::vector<ggml_tensor **> MtpModel::weights() {
    std::vector<ggml_tensor **> all = {&enorm,  &hnorm,       &attn_norm,   &q_norm, &k_norm,      &ffn_norm,
                                       &router, &shared_gate, &output_norm, &output, &output_scale};
    for (MtpLinear * l : {&eh_proj, &wq, &wk, &wv, &wo, &dense.gate, &dense.up, &dense.down, &experts.gate, &experts.up,
                          &experts.down, &gate_up, &shared.gate, &shared.up, &shared.down}) {
        all.push_back(&l->weight);
        all.push_back(&l->scale);
    }
    return all;
}

}  // namespace eagle
