// CUDA implementation of eagle_gdn.h, called from ggml-cuda's dispatch and its table of supported operations.

#pragma once

#include "eagle_cuda.cuh"

#ifdef EAGLE_CUDA_KERNELS

// Returns true if there is a kernel for this node, one of our operations.
bool eagle_cuda_knows(const ggml_tensor * op);

// Computes one of our operations. Returns false for other nodes.
bool eagle_cuda_recurrent(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// The operation on states of Mamba 2.
bool eagle_cuda_knows_ssm(const ggml_tensor * op);
void eagle_cuda_ssm_replay(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Computes ggml's own Gated DeltaNet with the same kernel, so that a context without round state has the same bits.
// Returns false for unsupported variants: a gate per channel, more than one state.
bool eagle_cuda_gdn(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

#else

static bool eagle_cuda_knows(const ggml_tensor *) {
    return false;
}

#endif
