#include "eagle_round_nodes.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "eagle_gdn.h"
#include "ggml-cpp.h"
#include "llama-impl.h"

namespace {

ggml_tensor * node(ggml_tensor * result, ggml_op op, const eagle_round_replay & replay, int64_t offset) {
    result->op = op;
    result->op_params[EAGLE_GDN_PARAM_N_RECORDED] = (int32_t) replay.n_recorded;
    result->op_params[EAGLE_GDN_PARAM_OFFSET] = (int32_t) offset;
    return result;
}

// These devices support every operation, by their own account.
bool claims_everything(ggml_backend_dev_t dev) {
    const char * name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
    return strncmp(name, "RPC", 3) == 0 || strcmp(name, "ggml-virtgpu") == 0;
}

// The CPU's buffer types have no device in ggml.
bool computes_in(ggml_backend_t backend, ggml_backend_buffer_type_t type) {
    const ggml_backend_dev_t dev = ggml_backend_buft_get_device(type);
    const ggml_backend_dev_t own = ggml_backend_get_device(backend);
    return dev ? own == dev : ggml_backend_dev_type(own) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// The scheduler replaces sources that a backend cannot read by copies, which have no view_src.
bool is_on(ggml_backend_t backend, const ggml_tensor * view) {
    return view->view_src && view->view_src->buffer &&
           computes_in(backend, ggml_backend_buffer_get_type(view->view_src->buffer));
}

}  // namespace

ggml_tensor * eagle_round_scan_node(ggml_context * ctx, const eagle_round_layout & layout, const eagle_round_scan & in,
                                    const eagle_round_replay & replay) {
    const int64_t * v = in.v->ne;
    ggml_tensor * op = node(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, v[0] * v[1], v[2] * v[3]), GGML_OP_EAGLE_GDN, replay,
                            layout.scan_offset());
    const bool is_mamba2 = layout.kind == eagle_round_kind::ssm;
    op->op_params[EAGLE_GDN_PARAM_KIND] = is_mamba2 ? EAGLE_GDN_MAMBA2 : EAGLE_GDN_DELTA_NET;
    ggml_tensor * src[] = {in.q, in.k, in.v, in.g, in.beta, in.state, replay.records, replay.n_replay};
    std::copy(std::begin(src), std::end(src), op->src);
    return op;
}

ggml_tensor * eagle_round_window_node(ggml_context * ctx, const eagle_round_layout & layout,
                                      const eagle_round_window & in, const eagle_round_replay & replay) {
    const int64_t *w = in.window->ne, *x = in.x->ne;
    ggml_tensor * op =
        node(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, w[0] + x[1], w[1], w[2]), GGML_OP_EAGLE_CONV_WINDOW, replay, 0);
    ggml_tensor * src[] = {in.window, in.x, replay.records, replay.n_replay};
    std::copy(std::begin(src), std::end(src), op->src);
    return op;
}

bool eagle_round_device_knows(ggml_backend_dev_t dev, const eagle_round_layout & l) {
    if (claims_everything(dev)) {
        return false;
    }
    ggml_init_params params = {16 * ggml_tensor_overhead(), nullptr, true};
    const ggml_context_ptr ctx(ggml_init(params));
    const auto f32 = [&](int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        return ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F32, ne0, ne1, ne2, 1);
    };
    const int64_t N = l.k_dim, D = l.v_dim, K = l.n_k_heads, H = l.n_v_heads;
    const eagle_round_replay replay = {l.n_slots > 0 ? f32(l.row_floats()) : nullptr,
                                       ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1), l.n_slots};
    const eagle_round_scan scan = {f32(N, K), f32(N, K), f32(D, H), f32(1, H), f32(1, H), f32(N, D, H)};
    const eagle_round_window window = {f32(l.conv_window, l.n_channels), f32(l.n_channels)};
    return (l.kind == eagle_round_kind::conv ||
            ggml_backend_dev_supports_op(dev, eagle_round_scan_node(ctx.get(), l, scan, replay))) &&
           ggml_backend_dev_supports_op(dev, eagle_round_window_node(ctx.get(), l, window, replay));
}

void eagle_round_pin(ggml_backend_sched_t sched, ggml_tensor * node, const ggml_tensor * cache) {
    if (!cache->buffer) {
        return;  // during a size estimate nothing is allocated
    }
    const ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(cache->buffer);
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); i++) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        if (computes_in(backend, type)) {
            ggml_backend_sched_set_tensor_backend(sched, node, backend);
            return;
        }
    }
    throw std::runtime_error(format("%s is in memory of %s, which no backend of this context uses", cache->name,
                                    ggml_backend_buft_name(type)));
}

bool eagle_round_is_placed(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        if (!eagle_gdn_is_ours(node)) {
            continue;
        }
        const ggml_tensor * cache = node->src[eagle_gdn_cache_src(node)];
        const ggml_tensor * records = node->src[eagle_gdn_records_src(node)];
        ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched, node);
        if (!backend || !is_on(backend, cache) || (records && !is_on(backend, records))) {
            LLAMA_LOG_ERROR("%s: %s was placed on %s, which does not hold the state that it works on\n", __func__,
                            ggml_op_name(node->op), backend ? ggml_backend_name(backend) : "no backend");
            return false;
        }
    }
    return true;
}
