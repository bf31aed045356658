// CPU side of eagle_gdn.h: called from ggml-cpu's dispatch for tagged operations.

#pragma once

struct ggml_compute_params;
struct ggml_tensor;

void eagle_cpu_gdn_replay(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// A GGML_OP_SSM_CONV that is a conv window or takes one in the token-major layout.
bool eagle_cpu_is_conv(const struct ggml_tensor * dst);
void eagle_cpu_conv(const struct ggml_compute_params * params, struct ggml_tensor * dst);
