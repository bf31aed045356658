// Exact kernels; each returns true if it has computed the node. A thread's share of a row and the order in which shares
// are summed do not depend on the number of rows or the length of a padded cache. These files are compiled without
// contraction
// (-fmad=false), so that every instantiation rounds in the same way; multiply-adds are written as fmaf.

#pragma once

#include "ggml-cuda/common.cuh"

namespace eagle_cuda {

constexpr int MAX_ROWS = 72;  // EAGLE_EXACT_MAX_ROWS

// MUL_MAT and MUL_MAT_ID of up to MAX_ROWS rows: Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, F16, BF16, F32.
bool mul_mat(ggml_backend_cuda_context & ctx, ggml_tensor * node);

// FLASH_ATTN_EXT of up to MAX_ROWS rows: head sizes 64 to 256, caches F16, BF16, F32, Q8_0, Q4_0.
bool flash_attn(ggml_backend_cuda_context & ctx, ggml_tensor * node);

// SOFT_MAX of up to MAX_ROWS rows with a mask, as used by attention without flash attention.
bool soft_max(ggml_backend_cuda_context & ctx, ggml_tensor * node);

}  // namespace eagle_cuda
