// Computes matrix multiplication nodes with the kernels of eagle_kernels.h.
#pragma once

#include "eagle_kernels.h"

struct ggml_compute_params;

namespace eagle {

// Returns the exact kernel for this MUL_MAT or MUL_MAT_ID node. Null if there are more than MAX_ROWS rows, if operands
// have an unsupported type or stride, or if the weights have the layout of another buffer type (AMX, KleidiAI). Weights
// in our repacked layout support any number of rows.
const kernel * kernel_for(const struct ggml_tensor * node);

// Returns true if products with these weights are exact: by one of our kernels, or row by row in ggml's interleaved
// layout.
bool exact_weights(const struct ggml_tensor * w);

// Returns true if the matrix can have our repacked layout.
bool takes_wide(const struct ggml_tensor * w);

// Both have two phases: the rows of src1 are packed, then multiplied.
constexpr int MUL_MAT_PHASES = 2;

size_t mul_mat_work_size(int n_threads, const struct ggml_tensor * node, const kernel & k);
void mul_mat(const struct ggml_compute_params * params, struct ggml_tensor * node, const kernel & k);

size_t mul_mat_id_work_size(int n_threads, const struct ggml_tensor * node, const kernel & k);
void mul_mat_id(const struct ggml_compute_params * params, struct ggml_tensor * node, const kernel & k);

// Activation rows that are multiplied together, and where their products go.
struct row_set {
    static constexpr int MAX = 8 * (CALL_ROWS - 1);
    const char * act[MAX];
    float * dst[MAX];
    int n = 0;
};

// Weight rows [begin, end) of one matrix.
struct weight_rows {
    const struct ggml_tensor * tensor;
    const char * matrix;
    int64_t begin, end;
};

// Multiplies the weight rows by the activation rows.
void dot_rows(const kernel & k, const weight_rows & w, tuning tune, const row_set & rows);

// Packs this ticket's share of the rows of src1 into `work`.
void pack_rows(const struct ggml_compute_params * params, const struct ggml_tensor * x, const kernel & k, char * work);

}  // namespace eagle
