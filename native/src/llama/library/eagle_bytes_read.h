// What decoding reads of a model's weights: where memory is the limit, what it costs.
#pragma once

#include <cstdint>

struct ggml_tensor;
struct llama_hparams;

namespace eagle {

// Bytes of a weight of block `il` that a decode of n_rows rows reads: of experts, as many as so many rows are expected
// to use when all are as likely.
double bytes_read(const ggml_tensor & weight, const llama_hparams & hparams, uint32_t il, int32_t n_rows);

}  // namespace eagle
