// Operations and types that a simulated GPU supports: those of ggml-cuda that language models use.
#pragma once

#include "ggml.h"

namespace stand_in {

bool computes(const ggml_tensor * op);

// Returns the rows of a batch; operations on weights in host memory are offloaded from 32 rows on.
int64_t batch_size(const ggml_tensor * op);

}  // namespace stand_in
