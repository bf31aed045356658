// Bytes of weights that a decode reads: its cost if memory bandwidth is the limit.
#pragma once

#include <cstdint>

struct ggml_tensor;
struct llama_hparams;

namespace eagle {

// Returns the bytes of a weight of block `il` that a decode of n_rows rows reads. For experts: the expected number of
// distinct experts if all are equally probable.
double bytes_read(const ggml_tensor & weight, const llama_hparams & hparams, uint32_t il, int32_t n_rows);

}  // namespace eagle
