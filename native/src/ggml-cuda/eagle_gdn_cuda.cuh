// CUDA side of eagle_gdn.h: called from ggml-cuda's dispatch for tagged operations.

#pragma once

#include "ggml-cuda/common.cuh"

void eagle_cuda_gdn_replay(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
void eagle_cuda_conv_window(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// ggml's own Gated DeltaNet by the same kernel, so that a context without round state computes the same bits. False for
// variants it does not know: a gate per channel, more than one state.
bool eagle_cuda_gdn(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
