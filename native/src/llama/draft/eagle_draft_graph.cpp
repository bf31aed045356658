#include "eagle_draft_graph.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "eagle_graph_builder.h"

namespace eagle {

namespace {

constexpr size_t MAX_NODES_PER_STEP = 128;

// ARGMAX on CUDA gives -1, which names no row, where no logit is above -FLT_MAX: all of them NaN, say.
constexpr float LIMIT = 3e38f;

}  // namespace

bool DraftShape::operator<(const DraftShape & other) const {
    return std::tie(n_in, n_steps, n_kv) < std::tie(other.n_in, other.n_steps, other.n_kv);
}

DraftGraph::DraftGraph(const DraftModel & model, const DraftTensors & tensors, DraftShape shape)
    : shape(shape),
      n_apart((int32_t) std::max<size_t>(1, tensors.alignment / sizeof(int32_t))),
      n_bulk((shape.n_in + n_apart - 1) / n_apart * n_apart),
      n_parts(model.rope.has_sections() ? GGML_MROPE_SECTIONS : 1) {
    const size_t n_nodes = MAX_NODES_PER_STEP * model.n_layer * (shape.n_steps + 1) + 16 * model.n_states();
    ggml_init_params params = {};
    params.mem_size = 2 * n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false);
    params.no_alloc = true;
    ctx.reset(ggml_init(params));
    gf = ggml_new_graph_custom(ctx.get(), n_nodes, false);
    model.build(tensors, *this);
}

void GraphBuilder::build() {
    make_inputs();
    const int32_t n_in = g.shape.n_in;
    ggml_tensor * hidden = decode(g.embeddings, enter(states()), {0, n_in}, g.shape.n_steps > 0);
    for (int32_t step = 0; step < g.shape.n_steps; step++) {
        if (step > 0) {
            hidden = decode(embed(g.ids.back()), g.hidden.back(), {n_in + step - 1, 1}, true);
        }
        predict(hidden);
    }
}

ggml_tensor * GraphBuilder::input(ggml_type type, int64_t ne0, int64_t ne1) {
    ggml_tensor * t = ggml_new_tensor_2d(ctx, type, ne0, ne1);
    ggml_set_input(t);
    return t;
}

void GraphBuilder::make_inputs() {
    g.state_lines = input(GGML_TYPE_I32, m.n_states() * g.shape.n_in, 1);
    g.embeddings = input(GGML_TYPE_F32, m.n_embd, g.shape.n_in);
    g.positions = input(GGML_TYPE_I32, g.n_parts * g.n_places(), 1);
    g.slots = input(GGML_TYPE_I64, g.n_places(), 1);
    g.mask = input(GGML_TYPE_F16, g.shape.n_kv, g.n_rows());
    g.mask_window = input(GGML_TYPE_F16, g.shape.n_kv, g.n_rows());
    g.probs = input(GGML_TYPE_F32, std::max(1, g.shape.n_steps), 1);
    ggml_set_output(g.probs);  // its memory is its own throughout the run: EarlyStop reads it meanwhile
}

// {A*T, n_in}
ggml_tensor * GraphBuilder::states() {
    ggml_tensor * lines = ggml_get_rows(ctx, tensors.states, g.state_lines);
    return ggml_reshape_2d(ctx, lines, m.n_states() * m.n_embd_tgt, g.shape.n_in);
}

ggml_tensor * GraphBuilder::embed(ggml_tensor * draft_id) {
    const DraftLookup & lookup = tensors.lookup;
    ggml_tensor * row = lookup.index ? ggml_get_rows(ctx, lookup.index, draft_id) : draft_id;
    return ggml_get_rows(ctx, lookup.table, ggml_reshape_1d(ctx, row, 1));
}

ggml_tensor * GraphBuilder::norm(ggml_tensor * x, ggml_tensor * weight) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, m.norm_eps), weight);
}

ggml_tensor * GraphBuilder::linear(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x) {
    ggml_tensor * y = ggml_mul_mat(ctx, weight, x);
    return bias ? ggml_add(ctx, y, bias) : y;
}

ggml_tensor * GraphBuilder::last_row(ggml_tensor * x) {
    return ggml_cont(ctx, ggml_view_2d(ctx, x, x->ne[0], 1, x->nb[1], (x->ne[1] - 1) * x->nb[1]));
}

// Of positions or slots, of n_parts each.
ggml_tensor * GraphBuilder::places(ggml_tensor * x, Rows rows, int32_t n_parts) {
    const int32_t first = rows.first == 0 ? 0 : g.place_alone(rows.first);
    return ggml_view_1d(ctx, x, n_parts * rows.count, n_parts * first * x->nb[0]);
}

ggml_tensor * GraphBuilder::split_heads(ggml_tensor * x, int64_t n_head, Rows rows) {
    return ggml_reshape_3d(ctx, x, m.n_head_dim, n_head, rows.count);
}

ggml_tensor * GraphBuilder::heads(ggml_tensor * x, ggml_tensor * head_norm, Rows rows) {
    const DraftRope & r = m.rope;
    ggml_tensor * at = places(g.positions, rows, g.n_parts);
    x = head_norm ? norm(x, head_norm) : x;
    if (!r.has_sections()) {
        return ggml_rope_ext(ctx, x, at, r.factors, r.n_dims, r.type, r.n_ctx_orig, r.freq_base, r.freq_scale,
                             r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow);
    }
    int sections[GGML_MROPE_SECTIONS];
    std::copy(r.sections.begin(), r.sections.end(), sections);
    return ggml_rope_multi(ctx, r.pairs_adjacent ? halves_of_pairs(x) : x, at, r.factors, r.n_dims, sections, r.type,
                           r.n_ctx_orig, r.freq_base, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast,
                           r.beta_slow);
}

// The rotated values of each head (0, 1), (2, 3), ... as (0, n/2), (1, n/2 + 1), ...: M-RoPE pairs the halves. Queries
// and keys alike, so that their products stay what they are.
ggml_tensor * GraphBuilder::halves_of_pairs(ggml_tensor * x) {
    const int64_t n_rot = m.rope.n_dims, n_heads = x->ne[1], n_rows = x->ne[2];
    ggml_tensor * rotated = ggml_view_4d(ctx, x, 2, n_rot / 2, n_heads, n_rows, 2 * x->nb[0], x->nb[1], x->nb[2], 0);
    rotated = ggml_cont_3d(ctx, ggml_permute(ctx, rotated, 1, 0, 2, 3), n_rot, n_heads, n_rows);
    if (n_rot == x->ne[0]) {
        return rotated;
    }
    ggml_tensor * rest = ggml_view_3d(ctx, x, x->ne[0] - n_rot, n_heads, n_rows, x->nb[1], x->nb[2], n_rot * x->nb[0]);
    return ggml_concat(ctx, rotated, ggml_cont(ctx, rest), 0);
}

void GraphBuilder::store_kv(size_t il, ggml_tensor * k, ggml_tensor * v, Rows rows) {
    ggml_tensor * slots = places(g.slots, rows);
    k = ggml_reshape_2d(ctx, k, m.n_head_dim * m.n_head_kv, rows.count);
    ggml_build_forward_expand(g.gf, ggml_set_rows(ctx, tensors.memory.k[il], k, slots));
    ggml_build_forward_expand(g.gf, ggml_set_rows(ctx, tensors.memory.v[il], v, slots));
}

ggml_tensor * GraphBuilder::slots_of(ggml_tensor * kv) {
    ggml_tensor * t = ggml_view_3d(ctx, kv, m.n_head_dim, m.n_head_kv, g.shape.n_kv,
                                   ggml_row_size(kv->type, m.n_head_dim), kv->nb[1], 0);
    return ggml_permute(ctx, t, 0, 2, 1, 3);
}

ggml_tensor * GraphBuilder::attention(size_t il, ggml_tensor * q, Rows rows) {
    q = ggml_permute(ctx, q, 0, 2, 1, 3);
    ggml_tensor * all = m.is_windowed(il) ? g.mask_window : g.mask;
    ggml_tensor * mask = ggml_view_2d(ctx, all, all->ne[0], rows.count, all->nb[1], rows.first * all->nb[1]);
    const float scale = 1.0f / std::sqrt((float) m.n_head_dim);
    ggml_tensor * y = ggml_flash_attn_ext(ctx, q, slots_of(tensors.memory.k[il]), slots_of(tensors.memory.v[il]), mask,
                                          scale, 0.0f, 0.0f);
    ggml_prec_set_acc(y, GGML_PREC_F32);
    return ggml_reshape_2d(ctx, y, m.n_head_dim * m.n_head, rows.count);
}

void GraphBuilder::predict(ggml_tensor * x) {
    ggml_tensor * normed = norm(x, m.output_norm);
    ggml_tensor * logits = ggml_mul_mat(ctx, m.output, normed);
    if (m.output_scale) {
        logits = ggml_mul(ctx, logits, m.output_scale);
    }
    ggml_tensor * id = ggml_argmax(ctx, tensors.on_cpu ? logits : ggml_clamp(ctx, logits, -LIMIT, LIMIT));
    ggml_tensor * prob = ggml_soft_max(ctx, logits);
    prob = ggml_get_rows(ctx, ggml_reshape_2d(ctx, prob, 1, m.n_vocab_draft), id);
    ggml_tensor * place = ggml_view_1d(ctx, g.probs, 1, g.ids.size() * sizeof(float));
    ggml_build_forward_expand(g.gf, ggml_cpy(ctx, prob, place));
    g.logits.push_back(output(logits));
    g.ids.push_back(output(id));
    g.hidden.push_back(output(m.norm_output ? normed : x));
}

ggml_tensor * GraphBuilder::output(ggml_tensor * t) {
    ggml_set_output(t);
    ggml_build_forward_expand(g.gf, t);
    return t;
}

}  // namespace eagle
