#include "eagle_draft_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "eagle_graph_builder.h"

namespace eagle {

namespace {

constexpr size_t MAX_NODES_PER_STEP = 128;  // per layer
constexpr size_t MAX_NODES_PER_PART = 32;   // additional nodes per layer and step

// Logits are clamped to it before ARGMAX, which on CUDA returns the invalid row -1 if no logit exceeds -FLT_MAX (all
// NaN).
constexpr float MAX_LOGIT = 3e38f;

}  // namespace

bool DraftPart::operator<(const DraftPart & other) const {
    return std::tie(seq, n_in, first_kv) < std::tie(other.seq, other.n_in, other.first_kv);
}

bool DraftShape::operator<(const DraftShape & other) const {
    return std::tie(n_steps, n_kv, parts) < std::tie(other.n_steps, other.n_kv, other.parts);
}

int32_t DraftShape::n_in() const {
    return std::accumulate(parts.begin(), parts.end(), 0, [](int32_t n, const DraftPart & p) { return n + p.n_in; });
}

int32_t DraftShape::n_rows() const {
    return n_in() + n_parts() * (n_steps > 1 ? n_steps - 1 : 0);
}

int32_t DraftGraph::slot_of_part(size_t part) const {
    int32_t slot = 0;
    for (size_t p = 0; p < part; p++) {
        slot += align(n_given(p)) + (n_block > 0 ? align(n_block) : alignment * n_chained());
    }
    return slot;
}

int32_t DraftGraph::mask_row(size_t part) const {
    int32_t row = 0;
    for (size_t p = 0; p < part; p++) {
        row += n_mask_rows(p);
    }
    return row;
}

DraftGraph::DraftGraph(const DraftModel & model, const DraftTensors & tensors, DraftShape shape)
    : shape(shape),
      alignment((int32_t) std::max<size_t>(1, tensors.alignment / sizeof(int32_t))),
      n_block(model.has_own_block() && shape.n_steps > 0 ? model.block.n_rows(shape.n_steps) : 0),
      n_masked(model.block.follows_row && shape.n_steps > 0 ? model.block.n_rows(shape.n_steps) : 0),
      n_position_parts(model.rope.has_sections() ? GGML_MROPE_SECTIONS : 1) {
    const size_t n_per_step = MAX_NODES_PER_STEP + MAX_NODES_PER_PART * shape.parts.size();
    const size_t n_nodes = n_per_step * model.n_layer * (shape.n_steps + 1) + 16 * model.n_states();
    ggml_init_params params = {};
    params.mem_size = 2 * n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false);
    params.no_alloc = true;
    ctx.reset(ggml_init(params));
    gf = ggml_new_graph_custom(ctx.get(), n_nodes, false);
    model.build(tensors, *this);
}

void GraphBuilder::build() {
    make_inputs();
    ggml_tensor * hidden = decode(g.embeddings, project(states()), {GIVEN, g.n_given()}, g.shape.n_steps > 0);
    if (g.n_block > 0 || g.n_masked > 0) {
        return predict(rows_to_predict(hidden));
    }
    for (int32_t step = 0; step < g.shape.n_steps; step++) {
        if (step > 0) {
            hidden = decode(embed(g.ids.back()), g.hidden.back(), {step, g.shape.n_parts()}, true);
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
    for (const DraftPart & part : g.shape.parts) {
        g.state_lines.push_back(input(GGML_TYPE_I32, m.n_states() * part.n_in, 1));
    }
    g.states_of_rows = input(GGML_TYPE_I32, g.n_given(), 1);
    g.embeddings = input(GGML_TYPE_F32, m.n_embd, g.n_given());
    g.block_embeddings = input(GGML_TYPE_F32, m.n_embd, g.shape.n_parts() * std::max(1, g.n_block));
    g.positions = input(GGML_TYPE_I32, g.n_position_parts * g.n_positions(), 1);
    g.slots = input(GGML_TYPE_I64, g.n_slots(), 1);
    g.last_rows = input(GGML_TYPE_I32, g.shape.n_parts() * g.n_last(), 1);
    const int32_t n_mask_rows = g.mask_row(g.shape.parts.size());
    g.last_tokens = input(GGML_TYPE_I32, g.shape.n_parts(), 1);
    g.mask = input(GGML_TYPE_F16, g.shape.n_kv, n_mask_rows);
    g.mask_window = input(GGML_TYPE_F16, g.shape.n_kv, n_mask_rows);
    g.probs = input(GGML_TYPE_F32, g.shape.n_parts() * std::max(1, g.shape.n_steps) * (tensors.is_remote ? 2 : 1), 1);
    ggml_set_output(g.probs);  // no other tensor may reuse its memory: EarlyStop reads it during the run
}

// {A*T, n_in}
ggml_tensor * GraphBuilder::states() {
    ggml_tensor * all = nullptr;
    for (size_t p = 0; p < g.shape.parts.size(); p++) {
        ggml_tensor * lines = ggml_get_rows(ctx, tensors.sequences[g.shape.parts[p].seq].states, g.state_lines[p]);
        all = all ? ggml_concat(ctx, all, lines, 1) : lines;
    }
    return ggml_reshape_2d(ctx, all, m.n_states() * m.n_embd_tgt, g.shape.n_in());
}

ggml_tensor * GraphBuilder::embed(ggml_tensor * draft_id) {
    const EmbeddingTable & embeddings = tensors.embeddings;
    ggml_tensor * row = embeddings.index ? ggml_get_rows(ctx, embeddings.index, draft_id) : draft_id;
    return ggml_get_rows(ctx, embeddings.table, ggml_reshape_1d(ctx, row, g.shape.n_parts()));
}

ggml_tensor * GraphBuilder::norm(ggml_tensor * x, ggml_tensor * weight) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, m.norm_eps), weight);
}

ggml_tensor * GraphBuilder::linear(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x) {
    ggml_tensor * y = ggml_mul_mat(ctx, weight, x);
    return bias ? ggml_add(ctx, y, bias) : y;
}

ggml_tensor * GraphBuilder::last_rows(ggml_tensor * x) {
    const int64_t n_last = g.n_last();
    if (x->ne[1] == g.shape.n_parts() * n_last) {
        return x;
    }
    if (g.shape.n_parts() > 1) {
        return ggml_get_rows(ctx, x, g.last_rows);
    }
    return ggml_cont(ctx, ggml_view_2d(ctx, x, x->ne[0], n_last, x->nb[1], (x->ne[1] - n_last) * x->nb[1]));
}

ggml_tensor * GraphBuilder::positions(Rows rows) {
    int32_t first = 0;
    if (rows.step != GIVEN) {
        first = rows.step == BLOCK ? g.position_of_block() : g.position_of_step(rows.step);
    }
    return ggml_view_1d(ctx, g.positions, g.n_position_parts * rows.count,
                        g.n_position_parts * first * g.positions->nb[0]);
}

ggml_tensor * GraphBuilder::slots(size_t part, Rows rows) {
    int32_t first = g.slot_of_part(part), n = g.n_given(part);
    if (rows.step == BLOCK) {
        first = g.slot_of_block(part);
        n = g.n_block;
    } else if (rows.are_last()) {
        first = g.slot_of_step(part, rows.step);
        n = 1;
    }
    return ggml_view_1d(ctx, g.slots, n, first * g.slots->nb[0]);
}

// Returns the part's rows of x {.., .., rows} or {.., rows}.
ggml_tensor * GraphBuilder::part_of(ggml_tensor * x, size_t part, Rows rows) {
    if (g.shape.n_parts() == 1) {
        return x;
    }
    int64_t n = rows.step == BLOCK ? g.n_block : g.n_last(), first = n * (int64_t) part;
    if (rows.step == GIVEN) {
        n = g.n_given(part);
        first = 0;
        for (size_t p = 0; p < part; p++) {
            first += g.n_given(p);
        }
    }
    if (x->ne[2] == 1) {
        return ggml_view_2d(ctx, x, x->ne[0], n, x->nb[1], first * x->nb[1]);
    }
    return ggml_view_3d(ctx, x, x->ne[0], x->ne[1], n, x->nb[1], x->nb[2], first * x->nb[2]);
}

ggml_tensor * GraphBuilder::split_heads(ggml_tensor * x, int64_t n_head, Rows rows) {
    return ggml_reshape_3d(ctx, x, m.n_head_dim, n_head, rows.count);
}

ggml_tensor * GraphBuilder::heads(ggml_tensor * x, ggml_tensor * head_norm, Rows rows) {
    const DraftRope & r = m.rope;
    ggml_tensor * at = positions(rows);
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

// Reorders each head's rotated values from adjacent pairs (0, 1), (2, 3), ... to pairs of halves (0, n/2), (1, n/2 +
// 1),
// ..., which M-RoPE expects. Queries and keys are reordered alike, so their products do not change.
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
    k = ggml_reshape_2d(ctx, k, m.n_head_dim * m.n_head_kv, rows.count);
    for (size_t p = 0; p < g.shape.parts.size(); p++) {
        const DraftMemory & memory = tensors.sequences[g.shape.parts[p].seq].memory;
        ggml_tensor * to = slots(p, rows);
        ggml_build_forward_expand(g.gf, ggml_set_rows(ctx, memory.k[il], part_of(k, p, rows), to));
        ggml_build_forward_expand(g.gf, ggml_set_rows(ctx, memory.v[il], part_of(v, p, rows), to));
    }
}

ggml_tensor * GraphBuilder::heads_of_cache(ggml_tensor * kv, size_t part) {
    ggml_tensor * t =
        ggml_view_3d(ctx, kv, m.n_head_dim, m.n_head_kv, g.shape.n_kv, ggml_row_size(kv->type, m.n_head_dim), kv->nb[1],
                     g.shape.parts[part].first_kv * kv->nb[1]);
    return ggml_permute(ctx, t, 0, 2, 1, 3);
}

ggml_tensor * GraphBuilder::attention(size_t il, ggml_tensor * q, Rows rows) {
    ggml_tensor * all = nullptr;
    for (size_t p = 0; p < g.shape.parts.size(); p++) {
        ggml_tensor * y = attention_of(p, il, part_of(q, p, rows), rows);
        all = all ? ggml_concat(ctx, all, y, 1) : y;
    }
    return all;
}

ggml_tensor * GraphBuilder::attention_of(size_t part, size_t il, ggml_tensor * q, Rows rows) {
    const DraftMemory & memory = tensors.sequences[g.shape.parts[part].seq].memory;
    const int64_t n = q->ne[2];
    const int32_t first = g.mask_row(part) + (rows.are_last() ? g.shape.parts[part].n_in - 1 + rows.step : 0);
    ggml_tensor * all = m.is_windowed(il) ? g.mask_window : g.mask;
    ggml_tensor * mask = ggml_view_2d(ctx, all, all->ne[0], n, all->nb[1], first * all->nb[1]);
    const float scale = m.attention_scale > 0.0f ? m.attention_scale : 1.0f / std::sqrt((float) m.n_head_dim);
    ggml_tensor * y = ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), heads_of_cache(memory.k[il], part),
                                          heads_of_cache(memory.v[il], part), mask, scale, 0.0f, 0.0f);
    ggml_flash_attn_ext_add_sinks(y, sinks_of(il));
    ggml_prec_set_acc(y, GGML_PREC_F32);
    return ggml_reshape_2d(ctx, y, m.n_head_dim * m.n_head, n);
}

// Returns the rows of the blocks {H, parts * rows of each} that propose tokens, step by step: {H, parts * n_steps}.
ggml_tensor * GraphBuilder::rows_to_predict(ggml_tensor * x) {
    const int64_t n_parts = g.shape.n_parts(), n_steps = g.shape.n_steps, n_rows = x->ne[1] / n_parts;
    const size_t first = (n_rows - n_steps) * x->nb[1];
    x = ggml_view_3d(ctx, x, m.n_embd, n_steps, n_parts, x->nb[1], n_rows * x->nb[1], first);
    return ggml_cont_2d(ctx, ggml_permute(ctx, x, 0, 2, 1, 3), m.n_embd, n_parts * n_steps);
}

// Returns columns [i * n_parts, (i + 1) * n_parts) of x.
ggml_tensor * GraphBuilder::columns_of_step(ggml_tensor * x, int64_t i) {
    const int64_t n_parts = g.shape.n_parts();
    return ggml_view_2d(ctx, x, x->ne[0], n_parts, x->nb[1], i * n_parts * x->nb[1]);
}

// x {H, parts}, or {H, parts * n_steps} for all steps at once.
void GraphBuilder::predict(ggml_tensor * x) {
    ggml_tensor * normed = norm(x, m.output_norm);
    ggml_tensor * logits = ggml_mul_mat(ctx, m.output, normed);
    if (m.output_scale) {
        logits = ggml_mul(ctx, logits, m.output_scale);
    }
    logits = adjust(logits);
    choose(logits, m.norm_output ? normed : x);
}

void GraphBuilder::choose(ggml_tensor * logits, ggml_tensor * hidden) {
    ggml_tensor * id = best_of(logits);
    record(logits, id, entry_of(ggml_soft_max(ctx, logits), id), hidden);
}

ggml_tensor * GraphBuilder::best_of(ggml_tensor * x) {
    return ggml_argmax(ctx, tensors.on_cpu ? x : ggml_clamp(ctx, x, -MAX_LOGIT, MAX_LOGIT));
}

ggml_tensor * GraphBuilder::entry_of(ggml_tensor * x, ggml_tensor * index) {
    const int64_t n = x->ne[1];
    ggml_tensor * y = ggml_get_rows(ctx, ggml_reshape_3d(ctx, x, 1, x->ne[0], n), ggml_reshape_2d(ctx, index, 1, n));
    return ggml_reshape_1d(ctx, y, n);
}

// Adds one step or more to the outputs. The probabilities are last: EarlyStop ends the run when it has seen them.
void GraphBuilder::record(ggml_tensor * logits, ggml_tensor * id, ggml_tensor * prob, ggml_tensor * hidden) {
    const int64_t n = logits->ne[1], n_parts = g.shape.n_parts();
    const size_t first = g.ids.size();
    if (tensors.is_remote) {  // as floats, which is exact: ids are below 2^24
        write_number(id, g.shape.n_steps + first);
    }
    output(logits);
    output(id);
    output(hidden);
    for (int64_t i = 0; n > n_parts && i < n / n_parts; i++) {
        g.logits.push_back(output(columns_of_step(logits, i)));
        g.ids.push_back(output(ggml_view_1d(ctx, id, n_parts, i * n_parts * id->nb[0])));
        g.hidden.push_back(output(columns_of_step(hidden, i)));
    }
    if (n == n_parts) {
        g.logits.push_back(logits);
        g.ids.push_back(id);
        g.hidden.push_back(hidden);
    }
    write_number(prob, first);
}

// Writes one number per part into row n of probs, or several rows from n on.
void GraphBuilder::write_number(ggml_tensor * x, size_t n) {
    ggml_tensor * place = ggml_view_1d(ctx, g.probs, ggml_nelements(x), n * g.shape.n_parts() * sizeof(float));
    ggml_build_forward_expand(g.gf, ggml_cpy(ctx, x, place));
}

ggml_tensor * GraphBuilder::output(ggml_tensor * t) {
    ggml_set_output(t);
    ggml_build_forward_expand(g.gf, t);
    return t;
}

}  // namespace eagle
