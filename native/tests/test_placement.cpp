// Tests where ggml's scheduler places the operations of eagle_gdn.h if a GPU offloads large batches: on the state's
// device, or not at all.

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "eagle_round_nodes.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "stand_in.h"
#include "stand_in_make.h"

namespace {

int failures = 0;

void check(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "FAIL %s\n", what);
        ++failures;
    }
}

eagle_round_layout layout() {
    eagle_round_layout l;
    l.n_slots = 3;
    l.k_dim = l.v_dim = 16;
    l.n_k_heads = l.n_v_heads = 2;
    l.n_channels = 128;
    l.conv_window = 3;
    return l;
}

ggml_backend_ptr start(ggml_backend_dev_t dev) {
    return ggml_backend_ptr(ggml_backend_dev_init(dev, nullptr));
}

ggml_context_ptr context(size_t n_tensors) {
    return ggml_context_ptr(ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
}

// Builds a window in a cache, 64 new tokens from a large product with weights on the CPU, and our operation.
struct case_of_a_window {
    ggml_context_ptr kept = context(8), ctx = context(32);
    ggml_backend_buffer_ptr cache_buffer, weight_buffer;
    ggml_tensor *cache, *records, *node;
    ggml_cgraph * graph;

    case_of_a_window(ggml_backend_t holder, ggml_backend_t cpu) {
        const eagle_round_layout l = layout();
        cache = ggml_new_tensor_2d(kept.get(), GGML_TYPE_F32, l.conv_window * l.n_channels, 1);
        records = ggml_new_tensor_2d(kept.get(), GGML_TYPE_F32, l.row_floats(), 1);
        cache_buffer.reset(ggml_backend_alloc_ctx_tensors(kept.get(), holder));
        ggml_backend_buffer_clear(cache_buffer.get(), 0);
        ggml_tensor * w = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 32, l.n_channels);
        weight_buffer.reset(ggml_backend_buft_alloc_buffer(ggml_backend_get_default_buffer_type(cpu), ggml_nbytes(w)));
        ggml_backend_buffer_set_usage(weight_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_tensor_alloc(weight_buffer.get(), w, ggml_backend_buffer_get_base(weight_buffer.get()));
        ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 32, 64);
        ggml_tensor * n_replay = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
        ggml_set_input(input);
        ggml_set_input(n_replay);
        ggml_tensor * window =
            ggml_reshape_3d(ctx.get(), ggml_view_1d(ctx.get(), cache, cache->ne[0], 0), l.conv_window, l.n_channels, 1);
        ggml_tensor * x = ggml_reshape_3d(ctx.get(), ggml_mul_mat(ctx.get(), w, input), l.n_channels, 64, 1);
        const eagle_round_replay replay = {ggml_view_2d(ctx.get(), records, records->ne[0], 1, records->nb[1], 0),
                                           n_replay, l.n_slots};
        node = eagle_round_window_node(ctx.get(), l, {window, x}, replay);
        graph = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(graph, ggml_scale(ctx.get(), node, 2.0f));
    }
};

ggml_backend_sched_ptr scheduler(std::vector<ggml_backend_t> backends) {
    return ggml_backend_sched_ptr(
        ggml_backend_sched_new(backends.data(), nullptr, (int) backends.size(), 64, false, true));
}

// Returns the operation's backend after it was pinned to its state's and the graph was allocated.
ggml_backend_t placed(ggml_backend_sched_t sched, case_of_a_window & c) {
    eagle_round_pin(sched, c.node, c.cache);
    check(ggml_backend_sched_alloc_graph(sched, c.graph), "allocation");
    check(eagle_round_is_placed(sched, c.graph), "is_placed of a pinned operation");
    return ggml_backend_sched_get_tensor_backend(sched, c.node);
}

void test_a_state_on(ggml_backend_t holder, ggml_backend_t gpu, ggml_backend_t cpu, const char * what) {
    const ggml_backend_sched_ptr sched = scheduler({gpu, cpu});
    case_of_a_window c(holder, cpu);
    check(placed(sched.get(), c) == holder, what);
}

void test_wrong_place(ggml_backend_t gpu, ggml_backend_t cpu) {
    const ggml_backend_sched_ptr sched = scheduler({gpu, cpu});
    case_of_a_window c(cpu, cpu);
    ggml_backend_sched_set_tensor_backend(sched.get(), c.node, gpu);
    check(ggml_backend_sched_alloc_graph(sched.get(), c.graph), "allocation");
    check(!eagle_round_is_placed(sched.get(), c.graph), "an operation on a copy of its state goes unnoticed");
}

void test_no_place(ggml_backend_t gpu, ggml_backend_t cpu) {
    const ggml_backend_sched_ptr sched = scheduler({cpu});
    case_of_a_window c(gpu, cpu);
    try {
        eagle_round_pin(sched.get(), c.node, c.cache);
    } catch (const std::runtime_error & error) {
        check(strstr(error.what(), "GPU0") != nullptr, "the error names the state's memory");
        return;
    }
    check(false, "a state where no backend computes");
}

}  // namespace

int main() {
    stand_in_register(1, "", 256);
    stand_in_register(1, "EAGLE_GDN,EAGLE_CONV_WINDOW", 256);
    stand_in::register_make({"RPC[there]", nullptr, nullptr, nullptr});
    stand_in::register_make({"W", nullptr, [](const ggml_tensor * t) { return t->op != GGML_OP_EAGLE_GDN; }, nullptr});
    const ggml_backend_ptr cpu = start(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    const ggml_backend_ptr knows = start(ggml_backend_dev_by_name("GPU0"));
    const ggml_backend_ptr refuses = start(ggml_backend_dev_by_name("GPU1"));

    check(eagle_round_device_knows(ggml_backend_get_device(cpu.get()), layout()), "the CPU knows");
    check(eagle_round_device_knows(ggml_backend_get_device(knows.get()), layout()), "a device that knows");
    check(!eagle_round_device_knows(ggml_backend_get_device(refuses.get()), layout()), "a device that refuses");
    check(!eagle_round_device_knows(ggml_backend_dev_by_name("RPC[there]0"), layout()), "a device that claims all");
    eagle_round_layout conv = layout();
    conv.kind = eagle_round_kind::conv;
    check(eagle_round_device_knows(ggml_backend_dev_by_name("W0"), conv), "a device that knows the window alone");
    check(!eagle_round_device_knows(ggml_backend_dev_by_name("W0"), layout()), "a device that knows no state");

    test_a_state_on(cpu.get(), knows.get(), cpu.get(), "a state on the CPU, beside a GPU that knows");
    test_a_state_on(cpu.get(), refuses.get(), cpu.get(), "a state on the CPU, beside a GPU that refuses");
    test_a_state_on(knows.get(), knows.get(), cpu.get(), "a state on the GPU");
    test_wrong_place(knows.get(), cpu.get());
    test_no_place(knows.get(), cpu.get());
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}
