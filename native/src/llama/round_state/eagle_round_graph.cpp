#include "eagle_round_graph.h"

#include "eagle_round_state.h"
#include "eagle_round_unfused.h"
#include "llama-graph.h"
#include "llama-memory-recurrent.h"

namespace {

bool only_cpu(ggml_backend_sched_t sched) {
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); i++) {
        ggml_backend_dev_t dev = ggml_backend_get_device(ggml_backend_sched_get_backend(sched, i));
        if (ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return false;
        }
    }
    return true;
}

void make_token_major(ggml_tensor * t) {
    t->nb[0] = t->ne[1] * sizeof(float);
    t->nb[1] = sizeof(float);
}

eagle_round_replay replay_of_batch(const eagle_round_graph & graph, int64_t n_seqs) {
    const eagle_round_state * state = graph.mctx->get_eagle();
    ggml_tensor * all = state->records[graph.il];
    return {all ? eagle_round_cells(graph.ctx, graph.mctx, all, all->ne[0], n_seqs) : nullptr, graph.n_replay,
            state->n_recorded()};
}

}  // namespace

eagle_round_graph::eagle_round_graph(const llm_graph_context & graph, const llm_graph_input_rs * input, int il)
    : ctx(graph.ctx0), gf(graph.gf), sched(graph.sched), mctx(input->mctx), n_replay(input->s_copy_main), il(il) {}

ggml_tensor * eagle_round_cells(ggml_context * ctx, const llama_memory_recurrent_context * mctx, ggml_tensor * cache,
                                int64_t state_size, int64_t n_seqs) {
    return ggml_view_2d(ctx, cache, state_size, n_seqs, cache->nb[1], mctx->get_head() * cache->nb[1]);
}

ggml_tensor * eagle_round_conv_input(const eagle_round_graph & graph, ggml_tensor * x) {
    ggml_context * ctx = graph.ctx;
    const eagle_round_state * state = graph.mctx->get_eagle();
    ggml_tensor * cache = graph.mctx->get_r_l(graph.il);
    const int64_t n_seqs = x->ne[2];
    ggml_tensor * window = ggml_reshape_3d(ctx, eagle_round_cells(ctx, graph.mctx, cache, cache->ne[0], n_seqs),
                                           state->layout.conv_window, state->layout.n_channels, n_seqs);
    if (!state->fused) {
        // n_replay must be part of the graph, because every decode sets its values
        ggml_build_forward_expand(graph.gf, graph.n_replay);
        return eagle_round_unfused_conv_input(graph, window, x);
    }
    ggml_tensor * op = eagle_round_window_node(ctx, state->layout, {window, x}, replay_of_batch(graph, n_seqs));
    if (only_cpu(graph.sched) && state->layout.conv_window <= 3) {
        make_token_major(op);
    }
    eagle_round_pin(graph.sched, op, cache);
    return op;
}

ggml_tensor * eagle_round_attn(const eagle_round_graph & graph, eagle_round_scan in) {
    ggml_context * ctx = graph.ctx;
    const eagle_round_state * state = graph.mctx->get_eagle();
    const int64_t n_k = state->layout.n_k_heads;
    // The caller has repeated the heads for the unfused path; the first ones are the originals.
    in.q =
        ggml_view_4d(ctx, in.q, in.q->ne[0], n_k, in.q->ne[2], in.q->ne[3], in.q->nb[1], in.q->nb[2], in.q->nb[3], 0);
    in.k =
        ggml_view_4d(ctx, in.k, in.k->ne[0], n_k, in.k->ne[2], in.k->ne[3], in.k->nb[1], in.k->nb[2], in.k->nb[3], 0);
    if (!state->fused) {
        return eagle_round_unfused_attn(graph, in);
    }
    ggml_tensor * op = eagle_round_scan_node(ctx, state->layout, in, replay_of_batch(graph, in.v->ne[3]));
    eagle_round_pin(graph.sched, op, graph.mctx->get_s_l(graph.il));
    return ggml_reshape_4d(ctx, op, in.v->ne[0], in.v->ne[1], in.v->ne[2], in.v->ne[3]);
}

ggml_tensor * eagle_round_ssm(const eagle_round_graph & graph, eagle_round_scan in) {
    const eagle_round_layout & l = graph.mctx->get_eagle()->layout;
    in.g = ggml_reshape_4d(graph.ctx, in.g, 1, in.g->ne[0], in.g->ne[1], in.g->ne[2]);
    in.state = ggml_reshape_4d(graph.ctx, in.state, l.k_dim, l.v_dim, l.n_v_heads, in.v->ne[3]);
    return eagle_round_attn(graph, in);
}
