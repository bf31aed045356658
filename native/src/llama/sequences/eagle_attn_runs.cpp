#include "eagle_attn_runs.h"

#include "llama-graph.h"

namespace {

// Nodes of one run in one layer: four views, build_attn_mha's (at most 18, without flash attention) and the join.
constexpr uint32_t RUN_NODES = 24;

// Returns n slices of t along its last dimension, from slice `first` on.
ggml_tensor * streams(ggml_context * ctx, ggml_tensor * t, int64_t first, int64_t n) {
    return ggml_view_4d(ctx, t, t->ne[0], t->ne[1], t->ne[2], n, t->nb[1], t->nb[2], t->nb[3], first * t->nb[3]);
}

}  // namespace

bool eagle_attn_has_gaps(const ggml_tensor * k, const ggml_tensor * kq_mask) {
    return kq_mask && k->ne[3] > kq_mask->ne[3];
}

uint32_t eagle_attn_runs_max_nodes(uint32_t n_layer, uint32_t n_seq_max) {
    return n_layer * (n_seq_max / 2) * RUN_NODES;
}

ggml_tensor * eagle_attn_runs(const llm_graph_context & graph, const eagle_attn & whole) {
    ggml_context * ctx = graph.ctx0;
    const llama_seq_id * seqs = graph.ubatch.seq_id_unq;
    const int64_t n_seqs = whole.kq_mask->ne[3], n_tokens = whole.kq_mask->ne[1];  // n_tokens of each
    GGML_ASSERT(n_seqs == graph.ubatch.n_seqs_unq && n_seqs * n_tokens == whole.q->ne[2]);
    ggml_tensor * all = nullptr;
    for (int64_t first = 0, n; first < n_seqs; first += n) {
        for (n = 1; first + n < n_seqs && seqs[first + n] == seqs[first] + n;) {
            n++;
        }
        const int64_t stream = seqs[first] - seqs[0];
        ggml_tensor * q = ggml_view_3d(ctx, whole.q, whole.q->ne[0], whole.q->ne[1], n * n_tokens, whole.q->nb[1],
                                       whole.q->nb[2], first * n_tokens * whole.q->nb[2]);
        ggml_tensor * rows = graph.build_attn_mha(q, streams(ctx, whole.k, stream, n), streams(ctx, whole.v, stream, n),
                                                  nullptr, streams(ctx, whole.kq_mask, first, n), whole.sinks,
                                                  whole.v_mla, whole.n_kv_max, whole.kq_scale, whole.il);
        all = all ? ggml_concat(ctx, all, rows, 1) : rows;
    }
    ggml_build_forward_expand(graph.gf, all);
    return all;
}
