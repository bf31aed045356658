// CPU implementation of eagle_gdn.h, called from ggml-cpu's dispatch.

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;
struct ggml_tensor;

size_t eagle_cpu_gdn_work_size(int n_threads);
int eagle_cpu_gdn_phases(const struct ggml_tensor * node);
int64_t eagle_cpu_gdn_values(const struct ggml_tensor * node, int phase);
void eagle_cpu_gdn_replay(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void eagle_cpu_conv_window(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Computes GGML_OP_SSM_CONV over columns in either layout. Returns false for unsupported kernel lengths; then ggml
// computes it.
bool eagle_cpu_conv(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
