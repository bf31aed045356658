// CPU side of eagle_gdn.h: called from ggml-cpu's dispatch.

#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;
struct ggml_tensor;

void eagle_cpu_gdn_replay(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void eagle_cpu_conv_window(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// A GGML_OP_SSM_CONV whose input is token-major.
void eagle_cpu_conv(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
