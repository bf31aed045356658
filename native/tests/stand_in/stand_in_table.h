// What a stand-in for a GPU computes: ggml-cuda's operations and types, as far as language models use them.
#pragma once

#include "ggml.h"

namespace stand_in {

bool computes(const ggml_tensor * op);

// Rows of a batch: operations on weights in host memory are offloaded from 32 on.
int64_t batch_size(const ggml_tensor * op);

}  // namespace stand_in
