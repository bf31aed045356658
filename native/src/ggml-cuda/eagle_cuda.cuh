// What ggml-cuda's own files call: kernels that compute a row alone and in a batch alike. See docs/exactness.md.

#pragma once

#include "ggml-cuda/common.cuh"

using eagle_cuda_compute_t = bool (*)(ggml_backend_cuda_context & ctx, ggml_tensor * node);

// Runs the node if exactness is on and one of our kernels covers it, or row by row through ggml's `compute`; false
// leaves it to ggml.
bool eagle_cuda_compute_forward(ggml_backend_cuda_context & ctx, ggml_tensor * node, eagle_cuda_compute_t compute);

// Whether node i may be fused with those that follow: not where the fused kernel rounds otherwise, for what is fused
// depends on the number of rows and on where the allocator put them.
bool eagle_cuda_may_fuse(const ggml_cgraph * graph, int i);

// The key of a captured graph: other kernels run when the switch has been thrown.
const void * eagle_cuda_graph_key(const ggml_tensor * first);

// eagle_cuda_exact_set, void(bool), and eagle_cuda_exact_get, bool(void), by name; null for other names.
void * eagle_cuda_proc_address(const char * name);
