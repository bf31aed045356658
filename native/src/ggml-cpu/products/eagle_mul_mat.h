// Matrix multiplication nodes by the kernels of eagle_kernels.h.
#pragma once

#include "eagle_kernels.h"

struct ggml_compute_params;

namespace eagle {

// The kernel that would run this MUL_MAT or MUL_MAT_ID node exactly, or null: more rows than a verification has,
// operands of a type or stride we do not read, or weights in a layout that belongs to another backend buffer (AMX,
// KleidiAI). Weights in our own layout are multiplied by any number of rows.
const kernel * kernel_for(const struct ggml_tensor * node);

// Whether such weights are exact: a kernel above reads them, or ggml's interleaved ones do row by row.
bool exact_weights(const struct ggml_tensor * w);

// Both work in two phases: rows of src1 are packed, then multiplied.
constexpr int MUL_MAT_PHASES = 2;

size_t mul_mat_work_size(int n_threads, const struct ggml_tensor * node, const kernel & k);
void mul_mat(const struct ggml_compute_params * params, struct ggml_tensor * node, const kernel & k);

size_t mul_mat_id_work_size(int n_threads, const struct ggml_tensor * node, const kernel & k);
void mul_mat_id(const struct ggml_compute_params * params, struct ggml_tensor * node, const kernel & k);

// Weight rows [begin, end) of one matrix.
struct weight_rows {
    const struct ggml_tensor * tensor;
    const char * matrix;
    int64_t begin, end;
};

// Multiplies them by any number of rows.
void dot_rows(const kernel & k, const weight_rows & w, tuning tune, const char * const * act, float * const * dst,
              int64_t n_act);

// Packs the rows of src1 into `work`, this ticket's share.
void pack_rows(const struct ggml_compute_params * params, const struct ggml_tensor * x, const kernel & k, char * work);

}  // namespace eagle
