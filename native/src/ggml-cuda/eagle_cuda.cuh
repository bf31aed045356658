// What ggml-cuda's own files call: kernels that compute a row alone and in a batch alike. See docs/exactness.md.

#pragma once

#include "ggml-cuda/common.cuh"

// HIP and MUSA compile ggml-cuda's files, and call none of ours. HIP's compiler takes them
// (native/tests/compile_hip.sh), but no AMD GPU has run them.
#if !defined(GGML_USE_MUSA) && (!defined(GGML_USE_HIP) || defined(EAGLE_HIP_KERNELS))
#define EAGLE_CUDA_KERNELS
#endif

using eagle_cuda_compute_t = bool (*)(ggml_backend_cuda_context & ctx, ggml_tensor * node);

#ifdef EAGLE_CUDA_KERNELS

// Runs the node if exactness is on and one of our kernels covers it, or row by row through ggml's `compute`; false
// leaves it to ggml.
bool eagle_cuda_compute_forward(ggml_backend_cuda_context & ctx, ggml_tensor * node, eagle_cuda_compute_t compute);

// Whether node i may be fused with those that follow: not where the fused kernel rounds otherwise, for what is fused
// depends on the number of rows and on where the allocator put them.
bool eagle_cuda_may_fuse(const ggml_cgraph * graph, int i);

// The key of a captured graph. Rounds of different lengths keep a captured graph each, where ggml's key, the first
// node, has them take it from one another; and other kernels run when the switch has been thrown.
const void * eagle_cuda_graph_key(const ggml_cgraph * graph);

// eagle_cuda_exact_set, void(bool), and eagle_cuda_exact_get, bool(void), by name; null for other names.
void * eagle_cuda_proc_address(const char * name);

#else

static bool eagle_cuda_compute_forward(ggml_backend_cuda_context &, ggml_tensor *, eagle_cuda_compute_t) {
    return false;
}

static bool eagle_cuda_may_fuse(const ggml_cgraph *, int) {
    return true;
}

static const void * eagle_cuda_graph_key(const ggml_cgraph * graph) {
    return graph->nodes[0];
}

static void * eagle_cuda_proc_address(const char *) {
    return nullptr;
}

#endif
