#include "eagle_draft_loader.h"

#include <array>
#include <stdexcept>
#include <string>

#include "llama-model-loader.h"
#include "llama-model.h"

namespace eagle {

namespace {

constexpr const char * MARKER = "extended";

class Loader {
  public:
    explicit Loader(llama_model_base & model) : m(model), h(model.hparams), optional(model.TENSOR_NOT_REQUIRED) {}

    void load() {
        load_window();
        m.create_tensor(m.tn(LLM_TENSOR_EXTENDED), {1}, 0);
        load_fusion();
        load_vocabulary();
        for (uint32_t il = 0; il < h.n_layer(); il++) {
            load_layer((int) il);
        }
    }

  private:
    llama_model_base & m;
    const llama_hparams & h;
    const int optional;

    // Stores the pattern in the model's string metadata, which has no arrays. It cannot be in hparams, because
    // llama.cpp aborts on a sliding window of this architecture.
    void load_window() {
        std::array<uint32_t, LLAMA_MAX_LAYERS> windowed = {};
        if (m.ml->get_arr(LLM_KV_ATTENTION_SLIDING_WINDOW_PATTERN, windowed, false)) {
            std::string & pattern = m.gguf_kv[DRAFT_WINDOW_PATTERN];
            for (uint32_t il = 0; il < h.n_layer(); il++) {
                pattern += windowed[il] ? '1' : '0';
            }
        }
    }

    void load_fusion() {
        const int64_t n_aux = (int64_t) m.target_layer_ids.size();
        const int64_t width = h.n_embd_inp_enc();
        m.fc = m.create_tensor(m.tn(LLM_TENSOR_FC, "weight"), {width, h.n_embd}, 0);
        m.create_tensor(m.tn(LLM_TENSOR_FC, "bias"), {h.n_embd}, optional);
        m.create_tensor(m.tn(LLM_TENSOR_FC, "mask"), {width}, optional);
        if (h.norm_before_fc) {
            m.output_norm_enc = m.create_tensor(m.tn(LLM_TENSOR_ENC_OUTPUT_NORM, "weight"), {width}, 0);
        }
        // A draft has all of these norms or none; the first one decides.
        bool present = true;
        for (int64_t i = 0; i < n_aux && present; i++) {
            const std::string suffix = std::to_string(i) + ".weight";
            present = m.create_tensor(m.tn(LLM_TENSOR_FC_NORM, suffix.c_str()), {width / n_aux}, i == 0 ? optional : 0);
        }
    }

    void load_vocabulary() {
        const int64_t n_vocab = m.vocab.n_tokens();
        const ggml_tensor * map = m.ml->get_tensor_meta("d2t");
        const int64_t n_draft = map ? map->ne[0] : n_vocab;
        m.d2t = m.create_tensor(m.tn(LLM_TENSOR_D2T), {n_draft}, optional);
        m.output_norm = m.create_tensor(m.tn(LLM_TENSOR_OUTPUT_NORM, "weight"), {h.n_embd}, 0);
        m.output = m.create_tensor(m.tn(LLM_TENSOR_OUTPUT, "weight"), {h.n_embd, n_draft}, optional);
        m.tok_embd = m.create_tensor(m.tn(LLM_TENSOR_TOKEN_EMBD, "weight"), {h.n_embd, n_vocab}, optional);
    }

    void load_layer(int il) {
        auto & layer = m.layers[il];
        const int64_t n_embd = h.n_embd, n_in = il == 0 ? 2 * n_embd : n_embd;
        const int64_t n_head_dim = h.n_embd_head_k(il), n_q = n_head_dim * h.n_head(il), n_kv = h.n_embd_k_gqa(il);
        auto weight = [&](llm_tensor id, int64_t in, int64_t out) {
            return m.create_tensor(m.tn(id, "weight", il), {in, out}, 0);
        };
        auto vector = [&](llm_tensor id, const char * suffix, int64_t n, int flags) {
            return m.create_tensor(m.tn(id, suffix, il), {n}, flags);
        };
        layer.attn_norm = vector(LLM_TENSOR_ATTN_NORM, "weight", n_embd, 0);
        layer.ffn_norm = vector(LLM_TENSOR_FFN_NORM, "weight", n_embd, 0);
        if (il == 0) {
            layer.attn_norm_2 = vector(LLM_TENSOR_ATTN_NORM_2, "weight", n_embd, 0);
        }
        layer.wq = weight(LLM_TENSOR_ATTN_Q, n_in, n_q);
        layer.wk = weight(LLM_TENSOR_ATTN_K, n_in, n_kv);
        layer.wv = weight(LLM_TENSOR_ATTN_V, n_in, n_kv);
        layer.wo = weight(LLM_TENSOR_ATTN_OUT, n_q, n_embd);
        layer.wq_b = vector(LLM_TENSOR_ATTN_Q, "bias", n_q, optional);
        layer.wk_b = vector(LLM_TENSOR_ATTN_K, "bias", n_kv, optional);
        layer.wv_b = vector(LLM_TENSOR_ATTN_V, "bias", n_kv, optional);
        layer.wo_b = vector(LLM_TENSOR_ATTN_OUT, "bias", n_embd, optional);
        layer.attn_q_norm = vector(LLM_TENSOR_ATTN_Q_NORM, "weight", n_head_dim, optional);
        layer.attn_k_norm = vector(LLM_TENSOR_ATTN_K_NORM, "weight", n_head_dim, optional);
        layer.attn_post_norm = vector(LLM_TENSOR_ATTN_POST_NORM, "weight", n_embd, optional);
        if (layer.attn_post_norm) {  // Gemma 4's block
            layer.ffn_post_norm = vector(LLM_TENSOR_FFN_POST_NORM, "weight", n_embd, 0);
            layer.out_scale = vector(LLM_TENSOR_LAYER_OUT_SCALE, "weight", 1, 0);
        }
        layer.ffn_gate = weight(LLM_TENSOR_FFN_GATE, n_embd, h.n_ff(il));
        layer.ffn_up = weight(LLM_TENSOR_FFN_UP, n_embd, h.n_ff(il));
        layer.ffn_down = weight(LLM_TENSOR_FFN_DOWN, h.n_ff(il), n_embd);
        const int shared = il == 0 ? 0 : m.TENSOR_DUPLICATED;
        layer.rope_freqs = vector(LLM_TENSOR_ROPE_FREQS, "weight", h.n_rot(il) / 2, optional | shared);
    }
};

// name: a tensor of w2, to which the gate's belong.
void load_markov_gate(llama_model_base & m, const std::string & name) {
    const ggml_tensor * gate = m.ml->get_tensor_meta(MARKOV_GATE);
    if (gate && name == "markov_w2.weight") {
        const int64_t n_in = gate->ne[0], n_out = gate->ne[1];
        m.create_tensor(m.tn(LLM_TENSOR_DSPARK_MARKOV_W2, "gate.weight"), {n_in, n_out}, 0);
        m.create_tensor(m.tn(LLM_TENSOR_DSPARK_MARKOV_W2, "gate.bias"), {n_out}, 0);
    }
}

}  // namespace

bool draft_is_extended(const llama_model_loader & loader) {
    return loader.get_tensor_meta(MARKER) != nullptr;
}

void load_extended_draft(llama_model_base & model) {
    Loader(model).load();
}

ggml_tensor * load_trimmed_head(llama_model_base & model, const LLM_TN_IMPL & name, int flags) {
    if (name.tensor == LLM_TENSOR_DSPARK_MARKOV_W2) {
        load_markov_gate(model, name.str());
        return nullptr;
    }
    const bool has_head =
        model.arch == LLM_ARCH_QWEN35 || model.arch == LLM_ARCH_QWEN35MOE || model.arch == LLM_ARCH_QWEN3NEXT;
    if (!has_head || name.tensor != LLM_TENSOR_OUTPUT || model.d2t || model.ml->get_weight("blk.0.attn_norm.weight")) {
        return nullptr;
    }
    const ggml_tensor * map = model.ml->get_tensor_meta("d2t");
    if (!map) {
        return nullptr;
    }
    model.d2t = model.create_tensor(model.tn(LLM_TENSOR_D2T), {map->ne[0]}, 0);
    return model.create_tensor(name, {model.hparams.n_embd, map->ne[0]}, flags);
}

void require_stock_graph(const llama_model & model, bool is_mtp) {
    if (is_mtp && model.d2t) {
        throw std::runtime_error("this MTP head has its own vocabulary: only the eagle_session interface runs it");
    }
    if (model.get_tensor(MARKOV_GATE)) {
        throw std::runtime_error("this draft's Markov head has a gate: only the eagle_session interface runs it");
    }
    if (model.get_tensor(MARKER)) {
        throw std::runtime_error(
            "this EAGLE-3 draft has the extended layout: only the eagle_session interface runs it");
    }
}

std::string join(const std::vector<int32_t> & ids) {
    std::string text;
    for (int32_t id : ids) {
        text += (text.empty() ? "" : ", ") + std::to_string(id);
    }
    return text;
}

}  // namespace eagle
