// Exact kernels, as ggml-cuda calls them: a row has the same bits alone and in a batch. See docs/exactness.md.

#pragma once

#include "ggml-cuda/common.cuh"

// HIP and MUSA builds compile ggml-cuda's files without calls of our kernels. HIP's compiler accepts our kernels
// (native/tests/compile_hip.sh), but they have not run on an AMD GPU.
#if !defined(GGML_USE_MUSA) && (!defined(GGML_USE_HIP) || defined(EAGLE_HIP_KERNELS))
#define EAGLE_CUDA_KERNELS
#endif

using eagle_cuda_compute_t = bool (*)(ggml_backend_cuda_context & ctx, ggml_tensor * node);

#ifdef EAGLE_CUDA_KERNELS

// Computes our own operations, and if exact mode is on other nodes: with one of our kernels, or row by row with ggml's
// `compute`. Returns false to leave it to ggml.
bool eagle_cuda_compute_forward(ggml_backend_cuda_context & ctx, ggml_tensor * node, eagle_cuda_compute_t compute);

// Returns true if node i may be fused with the following ones. Fused kernels that round differently are excluded,
// because fusion depends on the number of rows and on the allocator.
bool eagle_cuda_may_fuse(const ggml_cgraph * graph, int i);

// Returns the key of a captured graph. With ggml's key, the first node, rounds of different lengths would replace each
// other's graph; the key also includes the exact mode, which selects other kernels.
const void * eagle_cuda_graph_key(const ggml_cgraph * graph);

// Returns eagle_cuda_exact_set, void(bool), or eagle_cuda_exact_get, bool(void), by name; null for other names.
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
