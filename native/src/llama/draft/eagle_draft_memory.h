// K and V of a draft, one slot per position.
#pragma once

#include <cstdint>
#include <vector>

struct ggml_tensor;

namespace eagle {

struct DraftMemory {
    int64_t n_ctx;
    std::vector<ggml_tensor *> k, v;  // per layer: {n_head_dim * n_head_kv, n_ctx}

    // Size in bytes of the slots [first, end), and copies of them to and from host memory.
    int64_t size(int32_t first, int32_t end) const;
    void save(int32_t first, int32_t end, char * data) const;
    void load(int32_t first, int32_t end, const char * data) const;
};

}  // namespace eagle
