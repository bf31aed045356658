// Tests properties of our CUDA code that results do not show: coalesced writes, and the keys of captured graphs.

#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "eagle_round_nodes.h"
#include "emulated_cuda.h"
#include "emulator.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

namespace {

int failures = 0;

void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAIL %s\n", what.c_str());
        ++failures;
    }
}

ggml_context_ptr context() {
    return ggml_context_ptr(ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
}

// Computes the window's node for n_tokens on the backend, and counts the writes of its result.
void compute_window(ggml_backend_t backend, int64_t n_tokens) {
    eagle_round_layout layout;
    layout.n_channels = 128;
    layout.conv_window = 3;
    const ggml_context_ptr ctx = context();
    ggml_tensor * window = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, layout.conv_window, layout.n_channels, 1);
    ggml_tensor * x = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, layout.n_channels, n_tokens, 1);
    ggml_tensor * n_replay = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
    ggml_tensor * node = eagle_round_window_node(ctx.get(), layout, {window, x}, {nullptr, n_replay, 0});
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, node);
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend));
    ggml_backend_buffer_clear(buffer.get(), 0);
    check(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS, "the window's node computes");
}

// The threads of a warp write adjacent floats: 128 bytes are four sectors, and a few more at the ends of rows. With one
// row per thread there would be 32.
void test_writes_are_coalesced(ggml_backend_t backend) {
    for (const int64_t n_tokens : {1, 5, 17, 40, 700}) {
        compute_window(backend, n_tokens);
        const emulator::Writes found = emulator::watched_writes();
        if (found.n_requests == 0) {
            printf("not run: writes to memory, for the kernels are not compiled to count them\n");
            return;
        }
        check(found.n_sectors < 8 * emulator::WARP_SIZE / 32 * found.n_requests,
              std::to_string(n_tokens) + " tokens: " + std::to_string(found.n_sectors) + " sectors in " +
                  std::to_string(found.n_requests) + " requests");
    }
}

// Builds the graph of a round at the same addresses as all others.
const void * key_of_round(std::vector<char> & memory, int64_t n_rows) {
    const ggml_context_ptr ctx(ggml_init({memory.size(), memory.data(), true}));
    ggml_tensor * w = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 64, 64);
    ggml_tensor * x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 64, n_rows);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, ggml_mul_mat(ctx.get(), w, ggml_rms_norm(ctx.get(), x, 1e-6f)));
    return emulated_cuda_graph_key(graph);
}

// With ggml-cuda's own key, the first node, each graph would replace the captured graph of the others.
void test_rounds_keep_their_captured_graphs() {
    std::vector<char> memory(16 * ggml_tensor_overhead() + ggml_graph_overhead());
    std::set<const void *> keys;
    for (int64_t n_rows = 1; n_rows <= 17; n_rows++) {
        keys.insert(key_of_round(memory, n_rows));
        check(key_of_round(memory, n_rows) == key_of_round(memory, n_rows), "a round of the same length is the same");
    }
    check(keys.size() == 17, "rounds of 1 to 17 rows share " + std::to_string(keys.size()) + " captured graphs");
}

}  // namespace

int main() {
    emulated_cuda_register();
    const ggml_backend_ptr backend(ggml_backend_dev_init(ggml_backend_dev_by_name("CUDA0"), nullptr));
    test_writes_are_coalesced(backend.get());
    test_rounds_keep_their_captured_graphs();
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}
