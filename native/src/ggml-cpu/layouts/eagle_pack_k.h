// Packing of activations for the kernels of the K-quants.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "eagle_pack.h"

#ifdef EAGLE_SIMD

namespace eagle {

struct kernel;  // eagle_kernels.h

size_t act_size_k(const kernel &, int64_t n);
void pack_k(const kernel &, const float * x, void * act, int64_t n, int64_t begin, int64_t end);

}  // namespace eagle

#endif  // EAGLE_SIMD
