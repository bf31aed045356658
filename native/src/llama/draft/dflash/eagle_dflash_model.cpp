#include "eagle_dflash_model.h"

#include <algorithm>
#include <string>

#include "eagle_draft_loader.h"
#include "eagle_error.h"
#include "llama-arch.h"
#include "llama-model.h"

namespace eagle {

namespace {

constexpr int32_t BLOCK_SIZE = 16;  // of a file that states none, as in llama.cpp

[[noreturn]] void incompatible(const std::string & what) {
    throw Error(EAGLE_ERR_INCOMPATIBLE, what);
}

// Returns the value of a boolean metadata key, `missing` if the file has none.
bool flag(const llama_model & model, const char * key, bool missing) {
    const auto found = model.gguf_kv.find(key);
    return found == model.gguf_kv.end() ? missing : found->second == "true";
}

}  // namespace

DFlashModel::DFlashModel(const llama_model & draft, const llama_model & target) {
    kind = "DFlash";
    lead = 0;
    norm_output = true;
    device = draft.dev_layer(0);
    require_fit(draft, target);
    read_shapes(draft, target);
    read_block(draft);
    read_tensors(draft, target);
    read_choice(draft);
    read_rope(draft);
    read_d2t(draft.d2t);
}

void DFlashModel::require_fit(const llama_model & draft, const llama_model & target) const {
    const auto & hparams = draft.hparams;
    const uint32_t width = target.hparams.n_embd;
    if (hparams.n_embd != width) {
        incompatible(format("the draft's hidden size is %u, the target's %u: use the draft of this target",
                            hparams.n_embd, width));
    }
    if (draft.vocab.n_tokens() != target.vocab.n_tokens()) {
        incompatible(format("the draft's tokenizer has %u tokens, the target's %u: use the draft of this target",
                            draft.vocab.n_tokens(), target.vocab.n_tokens()));
    }
    if (draft.target_layer_ids.empty()) {
        incompatible("the draft names no boundaries of the target to read: convert it again");
    }
    for (int32_t id : draft.target_layer_ids) {
        if (id < 0 || id > (int32_t) target.hparams.n_layer()) {
            incompatible(
                format("the draft reads boundary %d, but the target has %u blocks: use the draft of this "
                       "target",
                       id, target.hparams.n_layer()));
        }
    }
    const auto & l = draft.layers[0];
    if (hparams.dsv4_hc_mult > 0) {
        incompatible("the draft has blocks of DeepSeek-V4: only llama.cpp's own server code runs it");
    }
    if (draft.fc_s || l.wq_s || l.wk_s || l.wv_s || l.wo_s || l.ffn_gate_s || l.ffn_up_s || l.ffn_down_s) {
        incompatible("the draft's weights have scales (NVFP4): convert it to another type");
    }
}

void DFlashModel::read_shapes(const llama_model & draft, const llama_model & target) {
    const auto & hparams = draft.hparams;
    n_embd = n_embd_tgt = hparams.n_embd;
    n_vocab = target.vocab.n_tokens();
    n_head = hparams.n_head();
    n_head_kv = hparams.n_head_kv();
    n_head_dim = hparams.n_embd_head_k();
    n_ctx_train = hparams.n_ctx_train;
    norm_eps = hparams.f_norm_rms_eps;
    attention_scale = hparams.f_attention_scale;
    embedding_scale = hparams.f_embedding_scale;
    value_scale = hparams.f_attn_value_scale;
    logit_scale = hparams.f_logit_scale;
    logit_softcap = hparams.f_final_logit_softcapping;
    gelu = hparams.llm_ffn_op == LLM_FFN_GELU;
    states = draft.target_layer_ids;
    n_window = (int32_t) hparams.n_swa;
    for (uint32_t il = 0; il < hparams.n_layer() && n_window > 0; il++) {
        windowed.push_back(hparams.is_swa(il));
    }
}

void DFlashModel::read_block(const llama_model & draft) {
    const int32_t size = draft.hparams.dflash_block_size > 0 ? (int32_t) draft.hparams.dflash_block_size : BLOCK_SIZE;
    block.mask = draft.vocab.token_mask();
    // A file that states nothing, with and without windows: layers with one are causal, as SGLang and vLLM have it.
    const bool is_mixed = std::find(windowed.begin(), windowed.end(), false) != windowed.end();
    block.causal = flag(draft, "dflash.attention.causal", false);
    block.causal_window = flag(draft, "dflash.attention.causal", is_mixed);
    block.from_anchor = flag(draft, "dflash.sample_from_anchor", draft.dspark_markov_w1 != nullptr);
    block.n_max = size - block.n_rows(0);
    if (block.mask < 0 || block.mask >= n_vocab) {
        incompatible("the draft names no mask token (tokenizer.ggml.mask_token_id): convert it again");
    }
    if (block.n_max < 1) {
        incompatible(
            format("the draft's blocks of %d rows propose no token (dflash.block_size): convert it again", size));
    }
}

void DFlashModel::read_tensors(const llama_model & draft, const llama_model & target) {
    fc = draft.fc;
    hidden_norm = draft.output_norm_enc;
    output_norm = draft.output_norm;
    // llama.cpp loads a missing head from the draft's embeddings: the head meant is the target's.
    const bool own_head = draft.output && !(draft.tok_embd && are_tied(draft.tok_embd, draft.output));
    output = own_head ? draft.output : target.output;
    output_scale = own_head ? draft.output_s : target.output_s;
    tok_embd = draft.tok_embd ? draft.tok_embd : target.tok_embd;
    n_vocab_draft = output->ne[1];
    n_layer = (int64_t) draft.layers.size();
    weight_type = draft.layers[0].wq->type;
    for (const auto & l : draft.layers) {
        layers.push_back({l.attn_norm,
                          l.wq,
                          l.wk,
                          l.wv,
                          l.wo,
                          l.attn_q_norm,
                          l.attn_k_norm,
                          l.attn_sinks,
                          l.ffn_norm,
                          l.ffn_gate,
                          l.ffn_up,
                          l.ffn_down,
                          {l.dflash_attn_conv_base, l.dflash_attn_conv_proj},
                          {l.dflash_ffn_conv_base, l.dflash_ffn_conv_proj},
                          l.attn_post_norm,
                          l.ffn_post_norm,
                          l.out_scale});
    }
}

void DFlashModel::read_choice(const llama_model & draft) {
    selector = {draft.dflash_selector_prev, draft.dflash_selector_next, draft.dflash_selector_hidden,
                (int32_t) draft.hparams.dflash_selector_top_k};
    markov = {draft.dspark_markov_w1, draft.dspark_markov_w2, draft.dspark_markov_w2_s,
              const_cast<ggml_tensor *>(draft.get_tensor(MARKOV_GATE)),
              const_cast<ggml_tensor *>(draft.get_tensor(MARKOV_GATE_BIAS))};
    if (selector.before) {
        kind = "DFlash2";
    }
    if (markov.w1) {
        kind = "DSpark";
        can_trim = false;
        require_gate();
    }
}

void DFlashModel::require_gate() const {
    if (!markov.gate) {
        return;
    }
    const int64_t rank = markov.w1->ne[0], n_in = markov.gate->ne[0], n_out = markov.gate->ne[1];
    const bool is_gate = n_in == n_embd + rank && n_out == rank;
    const bool is_cell = n_in == n_embd + 2 * rank && n_out == 3 * rank;
    if (!is_gate && !is_cell) {
        incompatible(
            format("the Markov head's gate is %lld x %lld: convert it again", (long long) n_in, (long long) n_out));
    }
    if (is_cell && !block.from_anchor) {  // it was trained from the row of the last token on
        incompatible("a recurrent Markov head needs dflash.sample_from_anchor: convert it again");
    }
}

std::vector<ggml_tensor **> DFlashModel::weights() {
    std::vector<ggml_tensor **> all = {&fc,           &hidden_norm,      &output_norm,    &output,
                                       &output_scale, &rope.factors,     &markov.w2,      &markov.scale,
                                       &markov.gate,  &markov.gate_bias, &selector.hidden};
    for (DFlashLayer & l : layers) {
        all.insert(all.end(), {&l.attn_norm, &l.wq, &l.wk, &l.wv, &l.wo, &l.q_norm, &l.k_norm, &l.sinks, &l.ffn_norm,
                               &l.ffn_gate, &l.ffn_up, &l.ffn_down, &l.attn_conv.base, &l.attn_conv.proj,
                               &l.ffn_conv.base, &l.ffn_conv.proj, &l.attn_post_norm, &l.ffn_post_norm, &l.out_scale});
    }
    return all;
}

// The constants of llama_context for a model without overrides. A draft for an M-RoPE target rotates by the time alone.
void DFlashModel::read_rope(const llama_model & draft) {
    const auto & hparams = draft.hparams;
    const bool yarn = hparams.rope_scaling_type_train == LLAMA_ROPE_SCALING_TYPE_YARN;
    const bool scaled = hparams.rope_scaling_type_train != LLAMA_ROPE_SCALING_TYPE_NONE;
    rope.type = (int) llama_model_rope_type(&draft);
    rope.n_dims = (int) hparams.n_rot();
    rope.n_ctx_orig = (int) (hparams.n_ctx_orig_yarn ? hparams.n_ctx_orig_yarn : hparams.n_ctx_train);
    rope.freq_base = hparams.rope_freq_base_train;
    rope.freq_scale = scaled ? hparams.rope_freq_scale_train : 1.0f;
    rope.ext_factor = yarn ? 1.0f : 0.0f;
    rope.attn_factor = hparams.rope_attn_factor;  // ggml itself multiplies by the factor that follows from ext_factor
    rope.beta_fast = hparams.yarn_beta_fast;
    rope.beta_slow = hparams.yarn_beta_slow;
    rope.factors = draft.layers[0].rope_freqs;
    if (rope.type == GGML_ROPE_TYPE_MROPE) {
        std::copy_n(hparams.rope_sections.begin(), rope.sections.size(), rope.sections.begin());
        rope.factors = nullptr;
    }
}

}  // namespace eagle
