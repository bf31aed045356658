#include "eagle_round_unfused.h"

#include <algorithm>
#include <memory>

#include "eagle_round_state.h"
#include "ggml-cpp.h"
#include "llama-memory-recurrent.h"

namespace {

// A part of a record row: its offset, its shape per token, and the floats from token to token.
struct record_part {
    int64_t at, ne0, ne1, stride;
};

// Returns the first n_tokens of a part: [ne0, ne1, n_tokens, n_cells].
ggml_tensor * record_view(ggml_context * ctx, ggml_tensor * records, uint32_t cell, int64_t n_cells, record_part part,
                          int64_t n_tokens) {
    const size_t f = sizeof(float);
    return ggml_view_4d(ctx, records, part.ne0, part.ne1, n_tokens, n_cells, part.ne0 * f, part.stride * f,
                        records->nb[1], cell * records->nb[1] + part.at * f);
}

// The parts of a scan's record, in the layout of eagle_gdn.h or of ordinary operations.
struct scan_parts {
    record_part k, v, g, beta;

    explicit scan_parts(const eagle_round_state & state) {
        const eagle_round_layout & l = state.layout;
        k = {0, l.k_dim, l.n_k_heads, l.k_floats()};
        v = {0, l.v_dim, l.n_v_heads, l.v_floats()};
        g = beta = {0, 1, l.n_v_heads, l.n_v_heads};
        if (state.fused) {
            k.at = l.scan_offset();
            v.at = k.at + k.stride;
            g.at = v.at + v.stride;
            beta.at = g.at + g.stride;
            k.stride = v.stride = g.stride = beta.stride = l.scan_floats();
        } else {
            const eagle_round_parts p(l);
            k.at = p.k, v.at = p.v, g.at = p.g, beta.at = p.beta;
        }
    }
};

// Returns columns [first, first + n) of the convolution's record: [n, channels, n_cells].
ggml_tensor * conv_record(ggml_context * ctx, const eagle_round_layout & l, ggml_tensor * records, uint32_t cell,
                          int64_t n_cells, int64_t first, int64_t n) {
    const size_t f = sizeof(float);
    return ggml_view_3d(ctx, records, n, l.n_channels, n_cells, eagle_round_parts(l).n_columns * f, records->nb[1],
                        cell * records->nb[1] + first * f);
}

// Returns tokens [first, first + n) of a tensor [.., .., T, n_seqs].
ggml_tensor * tokens(ggml_context * ctx, ggml_tensor * t, int64_t first, int64_t n) {
    return ggml_view_4d(ctx, t, t->ne[0], t->ne[1], n, t->ne[3], t->nb[1], t->nb[2], t->nb[3], first * t->nb[2]);
}

struct scan_result {
    ggml_tensor * out;    // [v_dim, H, T, n_seqs]
    ggml_tensor * state;  // [k_dim * v_dim * H, n_seqs]
};

// The operations require contiguous, aligned gates.
ggml_tensor * contiguous(ggml_context * ctx, ggml_tensor * t) {
    return ggml_is_contiguous(t) && t->view_offs % eagle_round_parts::ALIGNMENT == 0 ? t : ggml_cont(ctx, t);
}

ggml_tensor * plain_operation(ggml_context * ctx, const eagle_round_scan & in, ggml_tensor * places) {
    ggml_tensor * g = contiguous(ctx, in.g);
    if (!places) {
        return ggml_gated_delta_net(ctx, in.q, in.k, in.v, g, contiguous(ctx, in.beta), in.state, 1);
    }
    ggml_tensor * dt = ggml_reshape_3d(ctx, g, g->ne[1], g->ne[2], g->ne[3]);
    return ggml_ssm_scan(ctx, in.state, in.v, dt, in.beta, in.k, in.q, places, 1);
}

// places: in Mamba 2, I32 [n_seqs], the place of each sequence's state; else null.
scan_result plain_scan(ggml_context * ctx, const eagle_round_scan & in, ggml_tensor * places) {
    const int64_t D = in.v->ne[0];
    const int64_t H = in.v->ne[1];
    const int64_t T = in.v->ne[2];
    const int64_t n_seqs = in.v->ne[3];
    const int64_t state = in.state->ne[0] * D * H;
    const size_t f = sizeof(float);
    ggml_tensor * r = plain_operation(ctx, in, places);
    return {ggml_view_4d(ctx, r, D, H, T, n_seqs, D * f, D * H * f, D * H * T * f, 0),
            ggml_view_2d(ctx, r, state, n_seqs, state * f, D * H * T * n_seqs * f)};
}

eagle_round_scan scan_tokens(ggml_context * ctx, const eagle_round_scan & in, int64_t first, int64_t n, bool is_ssm) {
    return {tokens(ctx, in.q, first, n),
            tokens(ctx, in.k, first, n),
            tokens(ctx, in.v, first, n),
            tokens(ctx, in.g, first, n),
            is_ssm ? in.beta : tokens(ctx, in.beta, first, n),
            in.state};
}

// Returns the convolution's window [W, channels] after n tokens that our operations have recorded.
ggml_tensor * window_after(ggml_context * ctx, const llama_memory_recurrent & mem, size_t il, uint32_t cell,
                           ggml_tensor * window, int64_t n) {
    const eagle_round_layout & l = mem.eagle->layout;
    ggml_tensor * records = mem.eagle->records[il];
    const size_t f = sizeof(float);
    ggml_tensor * x = ggml_view_2d(ctx, records, l.n_channels, n, l.n_channels * f, cell * records->nb[1]);
    ggml_tensor * all = ggml_concat(ctx, window, ggml_transpose(ctx, x), 0);
    return ggml_view_2d(ctx, all, l.conv_window, l.n_channels, all->nb[1], n * f);
}

// Adds the replay of one layer's state to the graph of eagle_round_commit_cell.
void commit_state(ggml_context * ctx, ggml_cgraph * gf, llama_memory_recurrent & mem, size_t il, uint32_t cell,
                  ggml_tensor * places) {
    const eagle_round_layout & l = mem.eagle->layout;
    ggml_tensor * records = mem.eagle->records[il];
    const int64_t n = mem.eagle->cells[cell].n_kept;
    const scan_parts p(*mem.eagle);

    ggml_tensor * row = ggml_view_1d(ctx, mem.s_l[il], mem.s_l[il]->ne[0], cell * mem.s_l[il]->nb[1]);
    eagle_round_scan in;
    in.k = record_view(ctx, records, cell, 1, p.k, n);
    in.q = in.k;  // the attention output is not used
    in.v = record_view(ctx, records, cell, 1, p.v, n);
    in.g = record_view(ctx, records, cell, 1, p.g, n);
    in.beta = places ? mem.eagle->decays[il] : record_view(ctx, records, cell, 1, p.beta, n);
    in.state = ggml_reshape_4d(ctx, row, l.k_dim, l.v_dim, l.n_v_heads, 1);
    const auto result = plain_scan(ctx, in, places);
    ggml_build_forward_expand(gf, ggml_cpy(ctx, result.state, row));
}

// Adds the window of one layer that our operations have recorded.
void commit_window(ggml_context * ctx, ggml_cgraph * gf, llama_memory_recurrent & mem, size_t il, uint32_t cell) {
    const eagle_round_layout & l = mem.eagle->layout;
    ggml_tensor * window = ggml_view_2d(ctx, mem.r_l[il], l.conv_window, l.n_channels, l.conv_window * sizeof(float),
                                        cell * mem.r_l[il]->nb[1]);
    ggml_tensor * after = window_after(ctx, mem, il, cell, window, mem.eagle->cells[cell].n_kept);
    ggml_build_forward_expand(gf, ggml_cpy(ctx, after, window));
}

// Returns the distance of two tensors in the same buffer in bytes; 0 if their buffers differ.
ptrdiff_t distance(const ggml_tensor * a, const ggml_tensor * b) {
    return a->buffer == b->buffer ? (const char *) b->data - (const char *) a->data : 0;
}

// Layers whose caches are at equal distances in one buffer, as on one device, so that one operation can access all.
struct layer_run {
    size_t first = 0;  // first layer
    int64_t n = 0;
    ptrdiff_t distance = 0;  // in bytes
};

std::vector<layer_run> layer_runs(const llama_memory_recurrent & mem) {
    constexpr ptrdiff_t MAX_BYTES = 64 << 20;  // some Vulkan drivers limit a binding to 128 MiB of a buffer
    std::vector<layer_run> runs;
    size_t last = 0;
    for (size_t il = 0; il < mem.s_l.size(); il++) {
        if (!mem.s_l[il]) {
            continue;
        }
        const ptrdiff_t to = runs.empty() ? 0 : distance(mem.r_l[last], mem.r_l[il]);
        const bool even = to > 0 && to == distance(mem.eagle->records[last], mem.eagle->records[il]);
        if (even && (runs.back().n == 1 || to == runs.back().distance) && to * (runs.back().n + 1) <= MAX_BYTES) {
            runs.back().distance = to;
            runs.back().n++;
        } else {
            runs.push_back({il, 1, 0});
        }
        last = il;
    }
    return runs;
}

// Returns the same view of each layer of a run: [ne0, ne1, n]. ggml_view cannot exceed its tensor, so it is built by
// hand.
ggml_tensor * view_of_run(ggml_context * ctx, const ggml_tensor * view, const layer_run & run) {
    ggml_tensor * t = ggml_new_tensor_3d(ctx, view->type, view->ne[0], view->ne[1], run.n);
    t->nb[1] = view->nb[1];
    t->nb[2] = std::max<size_t>(run.distance, view->nb[2]);
    t->nb[3] = t->nb[2] * run.n;
    t->buffer = view->view_src->buffer;
    t->data = (char *) view->view_src->data + view->view_offs;
    return t;
}

// Copies the windows of all layers of a run; ordinary operations have recorded them.
void commit_windows(ggml_context * ctx, ggml_cgraph * gf, llama_memory_recurrent & mem, const layer_run & run,
                    uint32_t cell) {
    const eagle_round_layout & l = mem.eagle->layout;
    ggml_tensor * cache = mem.r_l[run.first];
    ggml_tensor * window =
        ggml_view_2d(ctx, cache, l.conv_window, l.n_channels, l.conv_window * sizeof(float), cell * cache->nb[1]);
    ggml_tensor * after =
        conv_record(ctx, l, mem.eagle->records[run.first], cell, 1, mem.eagle->cells[cell].n_kept, l.conv_window);
    ggml_build_forward_expand(gf, ggml_cpy(ctx, view_of_run(ctx, after, run), view_of_run(ctx, window, run)));
}

// Uses a separate scheduler over the context's backends, so that the main graph stays allocated and reusable.
ggml_backend_sched_t commit_sched(eagle_round_state & state, ggml_backend_sched_t sched, size_t graph_size) {
    if (!state.sched) {
        std::vector<ggml_backend_t> backends;
        for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); i++) {
            backends.push_back(ggml_backend_sched_get_backend(sched, i));
        }
        state.sched.reset(
            ggml_backend_sched_new(backends.data(), nullptr, (int) backends.size(), graph_size, false, false));
    }
    return state.sched.get();
}

}  // namespace

// Tokens that can no longer be undone update the cache; the tail only reads it.
ggml_tensor * eagle_round_unfused_attn(const eagle_round_graph & graph, eagle_round_scan in) {
    ggml_context * ctx = graph.ctx;
    ggml_tensor * cache = in.state;
    const int64_t n_seqs = in.v->ne[3];
    const int64_t tail = std::min(in.v->ne[2], graph.mctx->get_eagle()->n_recorded());
    const int64_t head = in.v->ne[2] - tail;
    const bool is_ssm = graph.mctx->get_eagle()->layout.kind == eagle_round_kind::ssm;
    ggml_tensor * places = is_ssm ? graph.n_replay : nullptr;
    ggml_tensor * out = nullptr;
    if (head > 0) {
        const auto result = plain_scan(ctx, scan_tokens(ctx, in, 0, head, is_ssm), places);
        ggml_build_forward_expand(
            graph.gf, ggml_cpy(ctx, result.state, ggml_reshape_2d(ctx, cache, result.state->ne[0], n_seqs)));
        out = result.out;
        in.state = ggml_reshape_4d(ctx, result.state, cache->ne[0], cache->ne[1], cache->ne[2], n_seqs);
    }
    if (tail > 0) {
        const auto last = scan_tokens(ctx, in, head, tail, is_ssm);
        const auto result = plain_scan(ctx, last, places);
        out = out ? ggml_concat(ctx, out, result.out, 2) : result.out;
        const scan_parts p(*graph.mctx->get_eagle());
        ggml_tensor * records = graph.mctx->get_eagle()->records[graph.il];
        const uint32_t cell = graph.mctx->get_head();
        const auto store = [&](ggml_tensor * src, record_part part) {
            ggml_build_forward_expand(graph.gf,
                                      ggml_cpy(ctx, src, record_view(ctx, records, cell, n_seqs, part, tail)));
        };
        store(last.k, p.k);
        store(last.v, p.v);
        store(last.g, p.g);
        if (!is_ssm) {
            store(last.beta, p.beta);
        }
    }
    return out;
}

ggml_tensor * eagle_round_unfused_conv_input(const eagle_round_graph & graph, ggml_tensor * window, ggml_tensor * x) {
    ggml_context * ctx = graph.ctx;
    const eagle_round_layout & layout = graph.mctx->get_eagle()->layout;
    const int64_t n_seqs = x->ne[2];
    const int64_t tail = std::min(x->ne[1], graph.mctx->get_eagle()->n_recorded());
    const int64_t head = x->ne[1] - tail;
    ggml_tensor * input = ggml_concat(ctx, window, ggml_transpose(ctx, x), 0);
    ggml_build_forward_expand(graph.gf, input);
    if (head > 0) {
        ggml_tensor * moved = ggml_view_3d(ctx, input, window->ne[0], window->ne[1], n_seqs, input->nb[1], input->nb[2],
                                           head * input->nb[0]);
        ggml_build_forward_expand(graph.gf, ggml_cpy(ctx, moved, window));
    }
    if (tail > 0) {
        const int64_t n_columns = layout.conv_window + tail;
        ggml_tensor * last = ggml_view_3d(ctx, input, n_columns, layout.n_channels, n_seqs, input->nb[1], input->nb[2],
                                          head * input->nb[0]);
        ggml_tensor * rec = conv_record(ctx, layout, graph.mctx->get_eagle()->records[graph.il], graph.mctx->get_head(),
                                        n_seqs, 0, n_columns);
        ggml_build_forward_expand(graph.gf, ggml_cpy(ctx, last, rec));
    }
    return input;
}

ggml_status eagle_round_commit_cell(llama_memory_recurrent & mem, ggml_backend_sched_t main_sched, uint32_t cell) {
    constexpr size_t nodes_per_layer = 32;
    const size_t n_nodes = nodes_per_layer * mem.s_l.size();
    mem.eagle->graph_memory.resize(n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false));
    ggml_init_params params = {mem.eagle->graph_memory.size(), mem.eagle->graph_memory.data(), true};
    ggml_context_ptr ctx(ggml_init(params));
    ggml_cgraph * gf = ggml_new_graph_custom(ctx.get(), n_nodes, false);
    ggml_tensor * places = nullptr;
    if (mem.eagle->layout.kind == eagle_round_kind::ssm) {
        places = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
        ggml_set_input(places);
    }
    for (size_t il = 0; il < mem.s_l.size(); il++) {
        if (mem.s_l[il] && !ggml_is_empty(mem.s_l[il])) {
            commit_state(ctx.get(), gf, mem, il, cell, places);
        }
        if (mem.s_l[il] && mem.eagle->fused) {
            commit_window(ctx.get(), gf, mem, il, cell);
        }
    }
    if (!mem.eagle->fused) {
        for (const layer_run & run : layer_runs(mem)) {
            commit_windows(ctx.get(), gf, mem, run, cell);
        }
    }
    ggml_backend_sched_t sched = commit_sched(*mem.eagle, main_sched, n_nodes);
    ggml_backend_sched_synchronize(main_sched);
    ggml_backend_sched_reset(sched);
    if (!ggml_backend_sched_alloc_graph(sched, gf)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (places) {
        const int32_t first = 0;
        ggml_backend_tensor_set(places, &first, 0, sizeof(first));
    }
    return ggml_backend_sched_graph_compute(sched, gf);
}
