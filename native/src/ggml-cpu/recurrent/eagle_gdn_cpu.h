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

// Both kinds of GGML_OP_EAGLE_GDN run in phases over units of work.
size_t eagle_cpu_scan_work_size(int n_threads);
int eagle_cpu_scan_phases(const struct ggml_tensor * node);
int64_t eagle_cpu_scan_values(const struct ggml_tensor * node, int phase);

void eagle_cpu_gdn_replay(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void eagle_cpu_ssm_replay(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void eagle_cpu_conv_window(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Computes GGML_OP_SSM_CONV over columns in either layout. Returns false for unsupported kernel lengths; then ggml
// computes it.
bool eagle_cpu_conv(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Computes GGML_OP_SSM_SCAN of Mamba 2. Returns false for Mamba 1 and unsupported sizes; then ggml computes it.
bool eagle_cpu_ssm_scan(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Computes an operation of a recurrent layer. Returns false for all others, and for those left to ggml.
bool eagle_cpu_recurrent(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
