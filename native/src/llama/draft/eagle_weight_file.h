// Weights as they stand in a GGUF, for those that the loaded model keeps in an order of its own.
#pragma once

#include <vector>

struct ggml_tensor;

namespace eagle {

// The data of the weight with `loaded`'s name; `path` is a model's file, or the first of its splits. Throws
// std::runtime_error when it is null, cannot be read, or has no such weight of `loaded`'s type and shape.
std::vector<char> read_weight(const char * path, const ggml_tensor & loaded);

}  // namespace eagle
