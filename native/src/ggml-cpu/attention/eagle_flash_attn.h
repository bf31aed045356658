// Exact flash attention, for prompts too. The cache is split into segments at fixed positions, so that the order of
// summation does not depend on the number of rows, on threads, or on the padding of the cache.
#pragma once

#include <stddef.h>

#include "ggml.h"

struct ggml_compute_params;

namespace eagle {

bool takes_flash_attn(const struct ggml_tensor * node);
size_t flash_attn_work_size(int n_threads, const struct ggml_tensor * node);

// Phases: preparation of the units, computation, and for few rows the combination of each row's segments.
int flash_attn_phases(const struct ggml_tensor * node);
int64_t flash_attn_values(const struct ggml_tensor * node, int phase);
void flash_attn(const struct ggml_compute_params * params, struct ggml_tensor * node);

}  // namespace eagle
