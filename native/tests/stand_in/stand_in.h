// A GPU to test with where there is none: devices that look and place work as ggml-cuda's do, and compute on the CPU
// backend. Registered with ggml, they are what llama.cpp offloads to.
//
// What is like a GPU, because we have been wrong about it:
//   - large batches of weights in host memory are offloaded to it (offload_op), with copies of all other sources
//   - it has a table of operations and types, and a host buffer type whose device it is
//   - its memory cannot be read by the host, holds NaN when it is new, and has no memset
//   - ROPE ignores what an offset of the positions has below the alignment (ggml-vulkan)
//   - ARGMAX gives -1 where no value is above -FLT_MAX (ggml-cuda)
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Makes devices GPU0, GPU1, ... known to ggml, for good. lacks: names of operations that they do not compute, separated
// by commas, or "". alignment: of their buffers, a power of two in bytes.
__attribute__((visibility("default"))) void stand_in_register(int32_t n_devices, const char * lacks, int32_t alignment);

// How many nodes of the operation the devices have computed.
__attribute__((visibility("default"))) int64_t stand_in_count(const char * op);

#ifdef __cplusplus
}
#endif
