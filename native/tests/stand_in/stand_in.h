// Simulated GPUs for tests on machines without one: devices with the properties and placement rules of ggml-cuda's,
// which compute on the CPU backend. Registered with ggml, llama.cpp offloads to them.
//
// Simulated properties. Each has exposed a bug of ours:
//   - large batches of weights in host memory are offloaded to it (offload_op), with copies of all other sources
//   - it has a table of operations and types, and a host buffer type that belongs to it
//   - the host cannot read its memory, new memory contains NaN, and there is no memset
//   - GATED_DELTA_NET aborts if a source is not aligned (ggml-vulkan)
//   - ROPE rounds the offset of the positions down to the alignment (ggml-vulkan)
//   - ARGMAX returns -1 if no value is above -FLT_MAX (ggml-cuda)
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Registers devices GPU0, GPU1, ... with ggml permanently. lacks: comma-separated names of operations that they do not
// support, or "". alignment: alignment of their buffers in bytes, a power of two.
__attribute__((visibility("default"))) void stand_in_register(int32_t n_devices, const char * lacks, int32_t alignment);

// Returns a counter of the devices: computed "nodes", the nodes of an operation (by its name in ggml), nodes computed
// by an emulator's "own kernels", allocated "buffers", "writes" into them, and "bytes written".
__attribute__((visibility("default"))) int64_t stand_in_count(const char * what);

#ifdef __cplusplus
}
#endif
