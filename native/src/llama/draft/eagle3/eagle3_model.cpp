#include "eagle3_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "eagle_draft_loader.h"
#include "eagle_error.h"
#include "ggml-backend.h"
#include "llama-arch.h"
#include "llama-model.h"

namespace eagle {

namespace {

// Returns the value of a metadata key, empty if the file has none.
std::string meta(const llama_model & model, const char * key) {
    const auto found = model.gguf_kv.find(key);
    return found == model.gguf_kv.end() ? "" : found->second;
}

ggml_tensor * optional(const llama_model & model, const std::string & name) {
    return const_cast<ggml_tensor *>(model.get_tensor(name.c_str()));
}

void incompatible(const std::string & what) {
    throw Error(EAGLE_ERR_INCOMPATIBLE, what);
}

}  // namespace

Eagle3Model::Eagle3Model(const llama_model & draft, const llama_model & target) {
    kind = "EAGLE-3";
    lead = 0;
    device = draft.dev_layer(0);
    read_shapes(draft, target);
    read_window(draft);
    read_tensors(draft, target);
    read_block(draft);
    read_rope(draft);
    read_d2t(draft.d2t);
}

void Eagle3Model::read_shapes(const llama_model & draft, const llama_model & target) {
    const auto & hparams = draft.hparams;
    n_embd = hparams.n_embd;
    n_embd_tgt = target.hparams.n_embd;
    n_vocab = target.vocab.n_tokens();
    n_head = hparams.n_head();
    n_head_kv = hparams.n_head_kv();
    n_head_dim = hparams.n_embd_head_k();
    n_ctx_train = hparams.n_ctx_train;
    norm_eps = hparams.f_norm_rms_eps;
    norm_before_residual = hparams.norm_before_residual;
    norm_output = meta(draft, "eagle3.norm_output") == "true";
    const std::string softcap = meta(draft, "eagle3.final_logit_softcapping");
    logit_softcap = softcap.empty() ? 0.0f : std::stof(softcap);
    states = draft.target_layer_ids;
    const int64_t n_aux = n_states();

    if (n_aux == 0) {
        incompatible("the draft names no boundaries of the target to read");
    }
    if (draft.fc->ne[0] != n_aux * n_embd_tgt) {
        incompatible(format("the draft fuses %lld features of width %lld, but the target's hidden size is %lld",
                            (long long) n_aux, (long long) (draft.fc->ne[0] / n_aux), (long long) n_embd_tgt));
    }
    for (int32_t id : states) {
        if (id < 0 || id > (int32_t) target.hparams.n_layer()) {
            incompatible(
                format("the draft reads boundary %d, but the target has %u blocks", id, target.hparams.n_layer()));
        }
    }
    if ((int64_t) draft.vocab.n_tokens() != n_vocab) {
        incompatible(format("the draft's tokenizer has %u tokens, the target's %lld", draft.vocab.n_tokens(),
                            (long long) n_vocab));
    }
}

void Eagle3Model::read_window(const llama_model & draft) {
    const std::string size = meta(draft, "eagle3.attention.sliding_window");
    n_window = size.empty() ? 0 : std::stoi(size);
    for (char windowed_here : meta(draft, DRAFT_WINDOW_PATTERN)) {
        windowed.push_back(n_window > 0 && windowed_here == '1');
    }
}

void Eagle3Model::read_tensors(const llama_model & draft, const llama_model & target) {
    fc = draft.fc;
    fc_bias = optional(draft, "fc.bias");
    fc_input_norm = draft.output_norm_enc;
    fc_mask = optional(draft, "fc.mask");
    for (int64_t i = 0; ggml_tensor * norm = optional(draft, format("fc_norm.%d.weight", (int) i)); i++) {
        fc_norm.push_back(norm);
    }
    output_norm = draft.output_norm;
    output = draft.output ? draft.output : target.output;
    tok_embd = draft.tok_embd ? draft.tok_embd : target.tok_embd;
    if (!draft.tok_embd && are_tied(target.tok_embd, target.output)) {
        tied_head = target.output;
        tied = output == tied_head;
    }
    if ((!draft.output || !draft.tok_embd) && n_embd != n_embd_tgt) {
        incompatible(format("a draft of hidden size %lld needs its own embedding and head for a target of size %lld",
                            (long long) n_embd, (long long) n_embd_tgt));
    }
    n_vocab_draft = output->ne[1];
    n_layer = (int64_t) draft.layers.size();
    weight_type = draft.layers[0].wq->type;
    for (const auto & l : draft.layers) {
        layers.push_back({l.attn_norm, l.attn_norm_2, l.attn_q_norm, l.attn_k_norm, l.wq, l.wk, l.wv, l.wo, l.wq_b,
                          l.wk_b, l.wv_b, l.wo_b, l.ffn_norm, l.ffn_gate, l.ffn_up, l.ffn_down, l.attn_post_norm,
                          l.ffn_post_norm, l.out_scale});
    }
    attention_scale = layers[0].is_gemma() ? 1.0f : 0.0f;
}

void Eagle3Model::read_block(const llama_model & draft) {
    if (!fc_mask) {
        return;
    }
    kind = "P-EAGLE";
    const std::string size = meta(draft, "eagle3.block_size");
    block.n_max = size.empty() ? 0 : std::stoi(size);
    block.mask = draft.vocab.token_mask();
    block.from_anchor = block.causal = block.follows_row = true;
    if (block.mask < 0 || block.mask >= n_vocab || block.n_max < 1) {
        incompatible(
            "the draft names no mask token (tokenizer.ggml.mask_token_id), or no number of tokens that it "
            "proposes in one pass (eagle3.block_size): convert it again");
    }
}

std::vector<ggml_tensor **> Eagle3Model::weights() {
    std::vector<ggml_tensor **> all = {&fc, &fc_bias, &fc_input_norm, &fc_mask, &output_norm, &output, &rope.factors};
    for (ggml_tensor *& norm : fc_norm) {
        all.push_back(&norm);
    }
    for (Eagle3Layer & l : layers) {
        all.insert(all.end(), {&l.attn_norm, &l.hidden_norm, &l.q_norm, &l.k_norm, &l.wq, &l.wk, &l.wv, &l.wo, &l.bq,
                               &l.bk, &l.bv, &l.bo, &l.ffn_norm, &l.ffn_gate, &l.ffn_up, &l.ffn_down, &l.attn_post_norm,
                               &l.ffn_post_norm, &l.out_scale});
    }
    return all;
}

// Derives the constants as llama_context does from a model without overrides.
void Eagle3Model::read_rope(const llama_model & draft) {
    const auto & hparams = draft.hparams;
    const bool yarn = hparams.rope_scaling_type_train == LLAMA_ROPE_SCALING_TYPE_YARN;
    const bool scaled = hparams.rope_scaling_type_train != LLAMA_ROPE_SCALING_TYPE_NONE;
    rope.type = (int) llama_model_rope_type(&draft);
    rope.n_dims = (int) hparams.n_rot();
    rope.n_ctx_orig = (int) (hparams.n_ctx_orig_yarn ? hparams.n_ctx_orig_yarn : hparams.n_ctx_train);
    rope.freq_base = hparams.rope_freq_base_train;
    rope.freq_scale = scaled ? hparams.rope_freq_scale_train : 1.0f;
    rope.ext_factor = yarn ? 1.0f : 0.0f;
    // If ext_factor is set, ggml itself multiplies by 0.1 ln(1 / freq_scale) + 1.
    rope.attn_factor = hparams.rope_attn_factor;
    rope.beta_fast = hparams.yarn_beta_fast;
    rope.beta_slow = hparams.yarn_beta_slow;
    rope.factors = draft.layers[0].rope_freqs;
    read_sections(draft);
}

// Pairs that the sections do not cover rotate by the time.
void Eagle3Model::read_sections(const llama_model & draft) {
    const auto & given = draft.hparams.rope_sections;
    const int n_given = std::accumulate(given.begin(), given.end(), 0);
    if (n_given == 0) {
        return;
    }
    if (n_given > rope.n_dims / 2) {
        incompatible(format("the draft's M-RoPE sections name %d pairs, %d are rotated", n_given, rope.n_dims / 2));
    }
    std::copy(given.begin(), given.end(), rope.sections.begin());
    rope.sections[3] += rope.n_dims / 2 - n_given;
    rope.rest_is_time = true;
    rope.pairs_adjacent = rope.type == GGML_ROPE_TYPE_NORMAL;
    rope.type = meta(draft, "eagle3.rope.mrope_interleaved") == "true" ? GGML_ROPE_TYPE_IMROPE : GGML_ROPE_TYPE_MROPE;
}

}  // namespace eagle
