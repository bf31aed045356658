// A GPU to test with where there is none: devices that look and place work as ggml-cuda's do, and compute on the CPU
// backend. Registered with ggml, they are what llama.cpp offloads to.
//
// What is like a GPU, because we have been wrong about it:
//   - large batches of weights in host memory are offloaded to it (offload_op), with copies of all other sources
//   - it has a table of operations and types, and a host buffer type whose device it is
//   - its memory cannot be read by the host, holds NaN when it is new, and has no memset
//   - GATED_DELTA_NET ends the process where a source is not aligned (ggml-vulkan)
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

// What the devices have done: "nodes" computed, those of an operation by its name in ggml, those that an emulator's
// "own kernels" computed, "buffers" allocated, "writes" into them and "bytes written".
__attribute__((visibility("default"))) int64_t stand_in_count(const char * what);

#ifdef __cplusplus
}
#endif
