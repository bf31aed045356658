// A device named CUDA0 that runs our kernels in the emulator; the CPU backend computes all other operations.
#pragma once

#include "ggml-backend.h"

void emulated_cuda_register();

bool is_emulated(ggml_backend_dev_t dev);

// Captured graphs of ggml-cuda.
const void * emulated_cuda_graph_key(const ggml_cgraph * graph);
