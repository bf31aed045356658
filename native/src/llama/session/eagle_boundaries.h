// Boundaries (eagle_features.h) as a session reads them: from the result of the target's last graph, on its device.
#pragma once

#include <cstdint>

struct ggml_tensor;
struct llama_context;

namespace eagle {

// Beside the boundaries: the state behind the final norm, which the head reads.
constexpr int32_t FINAL_NORM = -1;

// Makes boundary `il` an output of the target's graphs. It is not copied to the host, unless eagle_capture_layer asks
// for that too. Throws EAGLE_ERR_INCOMPATIBLE where the target does not publish it.
void capture_on_device(llama_context & ctx, int32_t il);

// Ends it; what eagle_capture_layer asked for stays.
void release_on_device(llama_context & ctx, int32_t il);

// {n_embd, n_rows} of the last decode, valid until the context computes again. The context must be synchronized, and
// the decode have been one graph: at most n_ubatch tokens of one sequence.
ggml_tensor * boundary_on_device(const llama_context & ctx, int32_t il, int32_t n_rows);

}  // namespace eagle
