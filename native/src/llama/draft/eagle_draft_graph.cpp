#include "eagle_draft_graph.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace eagle {

bool DraftShape::operator<(const DraftShape & other) const {
    return std::tie(n_in, n_steps, n_kv) < std::tie(other.n_in, other.n_steps, other.n_kv);
}

namespace {

constexpr size_t MAX_NODES_PER_STEP = 64;

// ARGMAX on CUDA gives -1, which names no row, where no logit is above -FLT_MAX: all of them NaN, say.
constexpr float LIMIT = 3e38f;

class Builder {
  public:
    Builder(const DraftParts & parts, DraftGraph & graph)
        : m(parts.model),
          memory(parts.memory),
          lookup(parts.lookup),
          feature_table(parts.feature_table),
          on_cpu(parts.on_cpu),
          g(graph),
          ctx(graph.ctx.get()) {}

    void build() {
        make_inputs();
        const int32_t n_in = g.shape.n_in;
        ggml_tensor * hidden = decode(g.embeddings, fuse(features()), {0, n_in}, g.shape.n_steps > 0);
        for (int32_t step = 0; step < g.shape.n_steps; step++) {
            if (step > 0) {
                hidden = decode(embed(g.ids.back()), g.hidden.back(), {n_in + step - 1, 1}, true);
            }
            predict(hidden);
        }
    }

  private:
    struct Rows {
        int32_t first, count;
    };

    const DraftModel & m;
    const DraftMemory & memory;
    const DraftLookup & lookup;
    ggml_tensor * feature_table;
    const bool on_cpu;
    DraftGraph & g;
    ggml_context * ctx;

    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx, type, ne0, ne1);
        ggml_set_input(t);
        return t;
    }

    void make_inputs() {
        g.feature_lines = input(GGML_TYPE_I32, m.n_aux * g.shape.n_in, 1);
        g.embeddings = input(GGML_TYPE_F32, m.n_embd, g.shape.n_in);
        g.positions = input(GGML_TYPE_I32, g.n_places(), 1);
        g.slots = input(GGML_TYPE_I64, g.n_places(), 1);
        g.mask = input(GGML_TYPE_F16, g.shape.n_kv, g.n_rows());
        g.probs = input(GGML_TYPE_F32, std::max(1, g.shape.n_steps), 1);
        ggml_set_output(g.probs);  // its memory is its own throughout the run: EarlyStop reads it meanwhile
    }

    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight) {
        return ggml_mul(ctx, ggml_rms_norm(ctx, x, m.norm_eps), weight);
    }

    ggml_tensor * linear(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x) {
        ggml_tensor * y = ggml_mul_mat(ctx, weight, x);
        return bias ? ggml_add(ctx, y, bias) : y;
    }

    // {A*T, n_in}
    ggml_tensor * features() {
        ggml_tensor * lines = ggml_get_rows(ctx, feature_table, g.feature_lines);
        return ggml_reshape_2d(ctx, lines, m.n_aux * m.n_embd_tgt, g.shape.n_in);
    }

    ggml_tensor * fuse(ggml_tensor * features) {
        if (!m.fc_norm.empty()) {
            features = norm_each_feature(features);
        }
        if (m.fc_input_norm) {
            features = norm(features, m.fc_input_norm);
        }
        return linear(m.fc, m.fc_bias, features);
    }

    ggml_tensor * norm_each_feature(ggml_tensor * features) {
        ggml_tensor * all = nullptr;
        for (int64_t i = 0; i < m.n_aux; i++) {
            ggml_tensor * one = ggml_view_2d(ctx, features, m.n_embd_tgt, features->ne[1], features->nb[1],
                                             i * m.n_embd_tgt * sizeof(float));
            one = norm(ggml_cont(ctx, one), m.fc_norm[i]);
            all = all ? ggml_concat(ctx, all, one, 0) : one;
        }
        return all;
    }

    ggml_tensor * embed(ggml_tensor * draft_id) {
        ggml_tensor * row = lookup.index ? ggml_get_rows(ctx, lookup.index, draft_id) : draft_id;
        return ggml_get_rows(ctx, lookup.table, ggml_reshape_1d(ctx, row, 1));
    }

    // All layers over `rows`; returns the last row's output, or null when only K and V are wanted.
    ggml_tensor * decode(ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output) {
        for (size_t il = 0; il < m.layers.size(); il++) {
            const bool last = il + 1 == m.layers.size();
            hidden = layer(il, embedding, hidden, rows, !last || output, last);
        }
        return hidden;
    }

    // K and V are needed of every row, the rest only of the rows that somebody reads: in the last layer, the last.
    ggml_tensor * layer(size_t il, ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output, bool last) {
        const DraftLayer & l = m.layers[il];
        ggml_tensor * residual = hidden;
        ggml_tensor * x = norm(il == 0 ? embedding : hidden, l.attn_norm);
        if (il == 0) {
            ggml_tensor * normed = norm(hidden, l.hidden_norm);
            residual = m.norm_before_residual ? normed : hidden;
            x = ggml_concat(ctx, x, normed, 0);
        }
        store_kv(il, x, rows);
        if (!output) {
            return nullptr;
        }
        if (last && rows.count > 1) {
            x = last_row(x);
            residual = last_row(residual);
            rows = {rows.first + rows.count - 1, 1};
        }
        ggml_tensor * attended = ggml_add(ctx, linear(l.wo, l.bo, attention(il, x, rows)), residual);
        return ggml_add(ctx, feed_forward(l, norm(attended, l.ffn_norm)), attended);
    }

    ggml_tensor * last_row(ggml_tensor * x) {
        return ggml_cont(ctx, ggml_view_2d(ctx, x, x->ne[0], 1, x->nb[1], (x->ne[1] - 1) * x->nb[1]));
    }

    // Of positions or slots.
    ggml_tensor * places(ggml_tensor * x, Rows rows) {
        const int32_t first = rows.first == 0 ? 0 : g.place_alone(rows.first);
        return ggml_view_1d(ctx, x, rows.count, first * x->nb[0]);
    }

    ggml_tensor * rotate(ggml_tensor * x, Rows rows) {
        const DraftRope & r = m.rope;
        return ggml_rope_ext(ctx, x, places(g.positions, rows), r.factors, r.n_dims, r.type, r.n_ctx_orig, r.freq_base,
                             r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow);
    }

    // {rows * heads} -> {head, heads, rows}, normed and rotated
    ggml_tensor * heads(ggml_tensor * x, int64_t n_head, ggml_tensor * head_norm, Rows rows) {
        x = ggml_reshape_3d(ctx, x, m.n_head_dim, n_head, rows.count);
        return rotate(head_norm ? norm(x, head_norm) : x, rows);
    }

    void store_kv(size_t il, ggml_tensor * x, Rows rows) {
        const DraftLayer & l = m.layers[il];
        const int64_t width = m.n_head_dim * m.n_head_kv;
        ggml_tensor * k = heads(linear(l.wk, l.bk, x), m.n_head_kv, l.k_norm, rows);
        ggml_tensor * v = linear(l.wv, l.bv, x);
        ggml_tensor * slots = places(g.slots, rows);
        k = ggml_reshape_2d(ctx, k, width, rows.count);
        ggml_build_forward_expand(g.gf, ggml_set_rows(ctx, memory.k[il], k, slots));
        ggml_build_forward_expand(g.gf, ggml_set_rows(ctx, memory.v[il], v, slots));
    }

    ggml_tensor * slots_of(ggml_tensor * kv) {
        ggml_tensor * t = ggml_view_3d(ctx, kv, m.n_head_dim, m.n_head_kv, g.shape.n_kv,
                                       ggml_row_size(kv->type, m.n_head_dim), kv->nb[1], 0);
        return ggml_permute(ctx, t, 0, 2, 1, 3);
    }

    ggml_tensor * attention(size_t il, ggml_tensor * x, Rows rows) {
        const DraftLayer & l = m.layers[il];
        ggml_tensor * q = ggml_permute(ctx, heads(linear(l.wq, l.bq, x), m.n_head, l.q_norm, rows), 0, 2, 1, 3);
        ggml_tensor * mask =
            ggml_view_2d(ctx, g.mask, g.mask->ne[0], rows.count, g.mask->nb[1], rows.first * g.mask->nb[1]);
        const float scale = 1.0f / std::sqrt((float) m.n_head_dim);
        ggml_tensor * y =
            ggml_flash_attn_ext(ctx, q, slots_of(memory.k[il]), slots_of(memory.v[il]), mask, scale, 0.0f, 0.0f);
        ggml_prec_set_acc(y, GGML_PREC_F32);
        return ggml_reshape_2d(ctx, y, m.n_head_dim * m.n_head, rows.count);
    }

    ggml_tensor * feed_forward(const DraftLayer & l, ggml_tensor * x) {
        ggml_tensor * gate = ggml_mul_mat(ctx, l.ffn_gate, x);
        ggml_tensor * up = ggml_mul_mat(ctx, l.ffn_up, x);
        return ggml_mul_mat(ctx, l.ffn_down, ggml_swiglu_split(ctx, gate, up));
    }

    void predict(ggml_tensor * x) {
        ggml_tensor * normed = norm(x, m.output_norm);
        ggml_tensor * logits = ggml_mul_mat(ctx, m.output, normed);
        ggml_tensor * id = ggml_argmax(ctx, on_cpu ? logits : ggml_clamp(ctx, logits, -LIMIT, LIMIT));
        ggml_tensor * prob = ggml_soft_max(ctx, logits);
        prob = ggml_get_rows(ctx, ggml_reshape_2d(ctx, prob, 1, m.n_vocab_draft), id);
        ggml_tensor * place = ggml_view_1d(ctx, g.probs, 1, g.ids.size() * sizeof(float));
        ggml_build_forward_expand(g.gf, ggml_cpy(ctx, prob, place));
        g.logits.push_back(output(logits));
        g.ids.push_back(output(id));
        g.hidden.push_back(output(m.norm_output ? normed : x));
    }

    ggml_tensor * output(ggml_tensor * t) {
        ggml_set_output(t);
        ggml_build_forward_expand(g.gf, t);
        return t;
    }
};

}  // namespace

DraftGraph::DraftGraph(const DraftParts & parts, DraftShape shape)
    : shape(shape),
      n_apart((int32_t) std::max<size_t>(1, parts.alignment / sizeof(int32_t))),
      n_bulk((shape.n_in + n_apart - 1) / n_apart * n_apart) {
    const DraftModel & model = parts.model;
    const size_t n_nodes = MAX_NODES_PER_STEP * model.layers.size() * (shape.n_steps + 1) + 16 * model.n_aux;
    ggml_init_params params = {};
    params.mem_size = 2 * n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false);
    params.no_alloc = true;
    ctx.reset(ggml_init(params));
    gf = ggml_new_graph_custom(ctx.get(), n_nodes, false);
    Builder(parts, *this).build();
}

}  // namespace eagle
