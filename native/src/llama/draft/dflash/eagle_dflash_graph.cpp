// Graph of a DFlash draft. The projected states of the target give K and V of every layer directly. The block of the
// last token and mask tokens passes through the layers, and its rows also attend to each other. DFlash2 and DSpark
// choose the tokens one after another, in the same graph.

#include <algorithm>

#include "eagle_dflash_model.h"
#include "eagle_graph_builder.h"

namespace eagle {

namespace {

class DFlashBuilder : public GraphBuilder {
  public:
    DFlashBuilder(const DFlashModel & model, const DraftTensors & tensors, DraftGraph & graph)
        : GraphBuilder(model, tensors, graph), m(model) {}

  private:
    const DFlashModel & m;

    ggml_tensor * project(ggml_tensor * states) override {
        return norm(ggml_mul_mat(ctx, m.fc, states), m.hidden_norm);
    }

    ggml_tensor * decode(ggml_tensor *, ggml_tensor * hidden, Rows rows, bool output) override {
        for (size_t il = 0; il < m.layers.size(); il++) {
            store(il, hidden, rows);
        }
        if (!output) {
            return nullptr;
        }
        ggml_tensor * x = scaled(g.block_embeddings, m.embedding_scale);
        for (size_t il = 0; il < m.layers.size(); il++) {
            x = layer(il, x, {BLOCK, g.n_block * g.shape.n_parts()});
        }
        return x;
    }

    void store(size_t il, ggml_tensor * x, Rows rows) {
        const DFlashLayer & l = m.layers[il];
        ggml_tensor * k = split_heads(ggml_mul_mat(ctx, l.wk, x), m.n_head_kv, rows);
        ggml_tensor * v = l.wv ? ggml_mul_mat(ctx, l.wv, x) : ggml_rms_norm(ctx, k, m.norm_eps);
        store_kv(il, heads(k, l.k_norm, rows), ggml_reshape_2d(ctx, v, m.n_head_dim * m.n_head_kv, rows.count), rows);
    }

    ggml_tensor * layer(size_t il, ggml_tensor * residual, Rows rows) {
        const DFlashLayer & l = m.layers[il];
        ggml_tensor * x = norm(residual, l.attn_norm);
        ggml_tensor * factors = own_factors(l.attn_conv, x);
        x = convolve(l.attn_conv, factors, 0, x);
        store(il, x, rows);
        ggml_tensor * q = heads(split_heads(ggml_mul_mat(ctx, l.wq, x), m.n_head, rows), l.q_norm, rows);
        x = scaled(ggml_mul_mat(ctx, l.wo, attention(il, q, rows)), m.value_scale);
        residual = ggml_add(ctx, after(convolve(l.attn_conv, factors, 1, x), l.attn_post_norm), residual);
        x = norm(residual, l.ffn_norm);
        factors = own_factors(l.ffn_conv, x);
        x = feed_forward(l, convolve(l.ffn_conv, factors, 0, x));
        x = ggml_add(ctx, after(convolve(l.ffn_conv, factors, 1, x), l.ffn_post_norm), residual);
        return l.out_scale ? ggml_mul(ctx, x, l.out_scale) : x;
    }

    ggml_tensor * own_factors(const DFlashConvolution & conv, ggml_tensor * x) {
        return conv.base ? ggml_mul_mat(ctx, conv.proj, x) : nullptr;
    }

    // Sums each row of x {H, rows} and the rows before it in its block, each times the factors of its distance.
    ggml_tensor * convolve(const DFlashConvolution & conv, ggml_tensor * factors, int64_t side, ggml_tensor * x) {
        if (!conv.base) {
            return x;
        }
        const int64_t n_taps = conv.base->ne[1], n_rows = x->ne[1], n_groups = factors->ne[0] / (2 * n_taps);
        const int64_t n_channels = m.n_embd / n_groups;
        ggml_tensor * sum = nullptr;
        for (int64_t tap = 0; tap < std::min<int64_t>(n_taps, g.n_block); tap++) {
            ggml_tensor * rows = ggml_reshape_3d(ctx, delayed(x, tap), n_channels, n_groups, n_rows);
            ggml_tensor * base = ggml_view_2d(ctx, conv.base, n_channels, n_groups, n_channels * conv.base->nb[0],
                                              tap * conv.base->nb[1] + side * conv.base->nb[2]);
            const size_t first = (side * n_taps + tap) * n_groups * factors->nb[0];
            ggml_tensor * own = ggml_cont(ctx, ggml_view_2d(ctx, factors, n_groups, n_rows, factors->nb[1], first));
            own = ggml_mul(ctx, rows, ggml_reshape_3d(ctx, own, 1, n_groups, n_rows));
            ggml_tensor * term = ggml_add(ctx, ggml_mul(ctx, rows, base), own);
            sum = sum ? ggml_add(ctx, sum, term) : term;
        }
        return ggml_reshape_2d(ctx, sum, m.n_embd, n_rows);
    }

    // Moves the rows of each block by n places; its first n rows become 0.
    ggml_tensor * delayed(ggml_tensor * x, int64_t n) {
        if (n == 0) {
            return x;
        }
        const size_t block = g.n_block * x->nb[1];
        ggml_tensor * kept = ggml_view_3d(ctx, x, m.n_embd, g.n_block - n, g.shape.n_parts(), x->nb[1], block, 0);
        return ggml_pad_ext(ctx, kept, 0, 0, (int) n, 0, 0, 0, 0, 0);
    }

    ggml_tensor * feed_forward(const DFlashLayer & l, ggml_tensor * x) {
        ggml_tensor * gate = ggml_mul_mat(ctx, l.ffn_gate, x);
        ggml_tensor * up = ggml_mul_mat(ctx, l.ffn_up, x);
        return ggml_mul_mat(ctx, l.ffn_down, m.gelu ? ggml_geglu_split(ctx, gate, up) : swiglu(gate, up));
    }

    ggml_tensor * sinks_of(size_t il) override { return m.layers[il].sinks; }

    void choose(ggml_tensor * logits, ggml_tensor * hidden) override {
        if (m.markov.w1) {
            return choose_by_markov(logits, hidden);
        }
        if (m.selector.before) {
            return select(logits, hidden);
        }
        GraphBuilder::choose(logits, hidden);
    }

    ggml_tensor * target_ids(ggml_tensor * draft_ids) {
        ggml_tensor * index = tensors.embeddings.index;
        const int64_t n = ggml_nelements(draft_ids);
        draft_ids = ggml_reshape_1d(ctx, draft_ids, n);
        return index ? ggml_reshape_1d(ctx, ggml_get_rows(ctx, index, draft_ids), n) : draft_ids;
    }

    void choose_by_markov(ggml_tensor * logits, ggml_tensor * hidden) {
        ggml_tensor *before = g.last_tokens, *state = nullptr;
        for (int64_t step = 0; step < g.shape.n_steps; step++) {
            ggml_tensor * code = gated(ggml_get_rows(ctx, m.markov.w1, before), columns_of_step(hidden, step), state);
            ggml_tensor * bias = ggml_mul_mat(ctx, m.markov.w2, code);
            bias = m.markov.scale ? ggml_mul(ctx, bias, m.markov.scale) : bias;
            ggml_tensor * sum = ggml_add(ctx, columns_of_step(logits, step), bias);
            ggml_tensor * id = best_of(sum);
            record(sum, id, entry_of(ggml_soft_max(ctx, sum), id), columns_of_step(hidden, step));
            before = target_ids(id);
        }
    }

    // Applies the gate of a Markov head, if it has one, to the codes {rank, parts} of the tokens before. hidden: of the
    // rows. state: of a recurrent head, null before the first row.
    ggml_tensor * gated(ggml_tensor * code, ggml_tensor * hidden, ggml_tensor *& state) {
        if (!m.markov.gate) {
            return code;
        }
        if (!m.markov.is_recurrent()) {
            ggml_tensor * share = linear(m.markov.gate, m.markov.gate_bias, ggml_concat(ctx, hidden, code, 0));
            return ggml_mul(ctx, ggml_sigmoid(ctx, share), code);
        }
        state = state ? state : ggml_scale(ctx, code, 0.0f);
        ggml_tensor * x = ggml_concat(ctx, ggml_concat(ctx, state, code, 0), hidden, 0);
        x = linear(m.markov.gate, m.markov.gate_bias, x);
        ggml_tensor * kept = ggml_sigmoid(ctx, third_of(x, 0));
        ggml_tensor * fresh = ggml_tanh(ctx, third_of(x, 1));
        state = ggml_add(ctx, ggml_mul(ctx, kept, ggml_sub(ctx, state, fresh)), fresh);
        return ggml_tanh(ctx, third_of(x, 2));
    }

    ggml_tensor * third_of(ggml_tensor * x, int64_t i) {
        const int64_t n = x->ne[0] / 3;
        return ggml_cont(ctx, ggml_view_2d(ctx, x, n, x->ne[1], x->nb[1], i * n * x->nb[0]));
    }

    // The score of a candidate is its logit, plus the product of its code, the code of the token before and the state.
    void select(ggml_tensor * logits, ggml_tensor * hidden) {
        const DFlashSelector & s = m.selector;
        const int64_t n_parts = g.shape.n_parts(), n = logits->ne[1], rank = s.before->ne[0], k = s.n_candidates;
        ggml_tensor * candidates = ggml_top_k(ctx, logits, (int) k);
        ggml_tensor * own = ggml_get_rows(ctx, ggml_reshape_3d(ctx, logits, 1, logits->ne[0], n), candidates);
        own = ggml_reshape_2d(ctx, own, k, n);
        ggml_tensor * states = ggml_mul_mat(ctx, s.hidden, hidden);
        ggml_tensor * before = g.last_tokens;
        for (int64_t step = 0; step < g.shape.n_steps; step++) {
            ggml_tensor * ids = ggml_cont(ctx, columns_of_step(candidates, step));
            ggml_tensor * code = ggml_mul(ctx, ggml_get_rows(ctx, s.before, before), columns_of_step(states, step));
            ggml_tensor * codes = ggml_get_rows(ctx, s.after, target_ids(ids));
            codes = ggml_reshape_3d(ctx, codes, rank, k, n_parts);
            ggml_tensor * scores = ggml_mul_mat(ctx, codes, ggml_reshape_3d(ctx, code, rank, 1, n_parts));
            scores = ggml_add(ctx, ggml_reshape_2d(ctx, scores, k, n_parts), columns_of_step(own, step));
            ggml_tensor * best = best_of(scores);
            ggml_tensor * id = entry_of(ids, best);
            record(columns_of_step(logits, step), id, entry_of(ggml_soft_max(ctx, scores), best),
                   columns_of_step(hidden, step));
            before = target_ids(id);
        }
    }

    ggml_tensor * adjust(ggml_tensor * logits) override {
        if (m.markov.w1 && !m.layers[0].is_gemma()) {  // as llama.cpp: the Markov head was trained on the plain logits
            return logits;
        }
        return capped(scaled(logits, m.logit_scale), m.logit_softcap);
    }
};

}  // namespace

void DFlashModel::build(const DraftTensors & tensors, DraftGraph & graph) const {
    DFlashBuilder(*this, tensors, graph).build();
}

}  // namespace eagle
