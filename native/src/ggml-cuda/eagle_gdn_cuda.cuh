// CUDA side of eagle_gdn.h: called from ggml-cuda's dispatch, and from its table of what it computes.

#pragma once

#include "eagle_cuda.cuh"

#ifdef EAGLE_CUDA_KERNELS

// Whether we have a kernel for one of our operations.
bool eagle_cuda_knows(const ggml_tensor * op);

void eagle_cuda_gdn_replay(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
void eagle_cuda_conv_window(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// ggml's own Gated DeltaNet by the same kernel, so that a context without round state computes the same bits. False for
// variants it does not know: a gate per channel, more than one state.
bool eagle_cuda_gdn(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

#else

static bool eagle_cuda_knows(const ggml_tensor *) {
    return false;
}

static void eagle_cuda_gdn_replay(ggml_backend_cuda_context &, ggml_tensor *) {
    GGML_ABORT("no kernel");
}

static void eagle_cuda_conv_window(ggml_backend_cuda_context &, ggml_tensor *) {
    GGML_ABORT("no kernel");
}

#endif
