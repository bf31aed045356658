// CPU side of eagle_gdn.h: called from ggml-cpu's dispatch for tagged operations.

#pragma once

struct ggml_compute_params;
struct ggml_tensor;

void eagle_cpu_gdn_replay(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void eagle_cpu_conv_window(const struct ggml_compute_params * params, struct ggml_tensor * dst);
