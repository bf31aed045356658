// Flash attention nodes, exact, prompts too: the cache is cut into segments at fixed positions, so that the order of
// summation depends neither on the number of rows nor on threads nor on how far the cache is padded.
#pragma once

#include <stddef.h>

#include "ggml.h"

struct ggml_compute_params;

namespace eagle {

bool takes_flash_attn(const struct ggml_tensor * node);
size_t flash_attn_work_size(int n_threads, const struct ggml_tensor * node);

// Phases: prepares the units, computes them, and for few rows joins the segments of each row.
int flash_attn_phases(const struct ggml_tensor * node);
int64_t flash_attn_values(const struct ggml_tensor * node, int phase);
void flash_attn(const struct ggml_compute_params * params, struct ggml_tensor * node);

}  // namespace eagle
