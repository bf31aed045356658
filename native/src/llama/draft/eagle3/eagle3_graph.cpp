// Graph of an EAGLE-3 draft: states are fused once, and the first layer reads [embedding ; hidden]. In a P-EAGLE draft,
// mask rows follow the last row with states: their hidden is that of a learned row of states.

#include <cmath>

#include "eagle3_model.h"
#include "eagle_graph_builder.h"

namespace eagle {

namespace {

class Eagle3Builder : public GraphBuilder {
  public:
    Eagle3Builder(const Eagle3Model & model, const DraftTensors & tensors, DraftGraph & graph)
        : GraphBuilder(model, tensors, graph), m(model) {}

  private:
    const Eagle3Model & m;

    ggml_tensor * project(ggml_tensor * states) override {
        if (g.n_masked > 0) {
            states = ggml_concat(ctx, states, ggml_reshape_2d(ctx, m.fc_mask, states->ne[0], 1), 1);
        }
        if (!m.fc_norm.empty()) {
            states = norm_each_state(states);
        }
        if (m.fc_input_norm) {
            states = norm(states, m.fc_input_norm);
        }
        ggml_tensor * hidden = linear(m.fc, m.fc_bias, states);
        return g.n_masked > 0 ? ggml_get_rows(ctx, hidden, g.states_of_rows) : hidden;
    }

    ggml_tensor * norm_each_state(ggml_tensor * states) {
        ggml_tensor * all = nullptr;
        for (int64_t i = 0; i < m.n_states(); i++) {
            ggml_tensor * one =
                ggml_view_2d(ctx, states, m.n_embd_tgt, states->ne[1], states->nb[1], i * m.n_embd_tgt * sizeof(float));
            one = norm(ggml_cont(ctx, one), m.fc_norm[i]);
            all = all ? ggml_concat(ctx, all, one, 0) : one;
        }
        return all;
    }

    ggml_tensor * decode(ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output) override {
        for (size_t il = 0; il < m.layers.size(); il++) {
            const bool last = il + 1 == m.layers.size();
            hidden = layer(il, embedding, hidden, rows, !last || output, last);
        }
        return hidden;
    }

    // Every row needs K and V. The last layer computes the rest only for the rows that predict.
    ggml_tensor * layer(size_t il, ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output, bool last) {
        const Eagle3Layer & l = m.layers[il];
        ggml_tensor * residual = hidden;
        const float embedding_scale = l.is_gemma() ? std::sqrt((float) m.n_embd) : 0.0f;
        ggml_tensor * x = norm(il == 0 ? scaled(embedding, embedding_scale) : hidden, l.attn_norm);
        if (il == 0) {
            ggml_tensor * normed = norm(hidden, l.hidden_norm);
            residual = m.norm_before_residual ? normed : hidden;
            x = ggml_concat(ctx, x, normed, 0);
        }
        ggml_tensor * k = heads(split_heads(linear(l.wk, l.bk, x), m.n_head_kv, rows), l.k_norm, rows);
        store_kv(il, k, values(l, x, rows), rows);
        if (!output) {
            return nullptr;
        }
        if (last && !rows.are_last()) {
            x = last_rows(x);
            residual = last_rows(residual);
            rows = last_of_parts();
        }
        ggml_tensor * q = heads(split_heads(linear(l.wq, l.bq, x), m.n_head, rows), l.q_norm, rows);
        ggml_tensor * attended = after(linear(l.wo, l.bo, attention(il, q, rows)), l.attn_post_norm);
        attended = ggml_add(ctx, attended, residual);
        x = ggml_add(ctx, after(feed_forward(l, norm(attended, l.ffn_norm)), l.ffn_post_norm), attended);
        return l.is_gemma() ? ggml_mul(ctx, x, l.out_scale) : x;
    }

    ggml_tensor * values(const Eagle3Layer & l, ggml_tensor * x, Rows rows) {
        ggml_tensor * v = linear(l.wv, l.bv, x);
        if (!l.is_gemma()) {
            return v;
        }
        ggml_tensor * normed = ggml_rms_norm(ctx, split_heads(v, m.n_head_kv, rows), m.norm_eps);
        return ggml_reshape_2d(ctx, normed, v->ne[0], v->ne[1]);
    }

    ggml_tensor * feed_forward(const Eagle3Layer & l, ggml_tensor * x) {
        ggml_tensor * gate = ggml_mul_mat(ctx, l.ffn_gate, x);
        ggml_tensor * up = ggml_mul_mat(ctx, l.ffn_up, x);
        return ggml_mul_mat(ctx, l.ffn_down, l.is_gemma() ? ggml_geglu_split(ctx, gate, up) : swiglu(gate, up));
    }

    ggml_tensor * adjust(ggml_tensor * logits) override { return capped(logits, m.logit_softcap); }
};

}  // namespace

void Eagle3Model::build(const DraftTensors & tensors, DraftGraph & graph) const {
    Eagle3Builder(*this, tensors, graph).build();
}

}  // namespace eagle
