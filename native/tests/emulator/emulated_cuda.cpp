#include "emulated_cuda.h"

#include <cstring>

#include "eagle_cuda.cuh"
#include "eagle_gdn_cuda.cuh"
#include "stand_in_make.h"

namespace {

bool leave(ggml_backend_cuda_context &, ggml_tensor *) {
    return false;
}

// Same as ggml_cuda_compute_forward with our patches, except that row_by_row cannot call ggml's kernels, which are not
// available here.
bool compute(ggml_tensor * node) {
    ggml_backend_cuda_context ctx;
    if (node->op == GGML_OP_EAGLE_CONV_WINDOW) {
        emulator::watch_writes(node->data, ggml_nbytes(node));
    }
    return eagle_cuda_compute_forward(ctx, node, leave);
}

bool knows(const ggml_tensor * node) {
    return (node->op != GGML_OP_EAGLE_GDN && node->op != GGML_OP_EAGLE_CONV_WINDOW) || eagle_cuda_knows(node);
}

void * proc_address(const char * name) {
    return strcmp(name, "eagle_emulated") == 0 ? (void *) compute : eagle_cuda_proc_address(name);
}

}  // namespace

void emulated_cuda_register() {
    stand_in::register_make({"CUDA", compute, knows, proc_address});
}

bool is_emulated(ggml_backend_dev_t dev) {
    auto * address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "eagle_emulated");
    return address != nullptr;
}

const void * emulated_cuda_graph_key(const ggml_cgraph * graph) {
    return eagle_cuda_graph_key(graph);
}
