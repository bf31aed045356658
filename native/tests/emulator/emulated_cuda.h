// A device named CUDA0 whose kernels are ours, run by the emulator; what we have no kernel for, the CPU backend
// computes.
#pragma once

#include "ggml-backend.h"

void emulated_cuda_register();

bool is_emulated(ggml_backend_dev_t dev);

// Where ggml-cuda keeps what it captured of a graph.
const void * emulated_cuda_graph_key(const ggml_cgraph * graph);
