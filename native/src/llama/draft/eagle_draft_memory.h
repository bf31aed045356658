// K and V of a draft, a ring of slots: the row of slot s is at s modulo n_ctx. A row attends to at most the last
// n_window slots, so the memory slides over a text of any length. Rows keep their positions, because RoPE depends on
// differences alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

struct ggml_tensor;

namespace eagle {

struct DraftMemory {
    int32_t n_ctx;
    int32_t n_window;
    std::vector<ggml_tensor *> k, v;  // per layer: {n_head_dim * n_head_kv, n_ctx}

    // Calls use(first, n) for the one or two ranges of the ring that hold the slots [first, end).
    template <typename Use>
    void each_range(int32_t first, int32_t end, Use use) const {
        for (int32_t n; first < end; first += n) {
            n = std::min(end - first, n_ctx - first % n_ctx);
            use(first % n_ctx, n);
        }
    }

    // Size in bytes of the slots [first, end), at most n_ctx of them, and copies of them to and from host memory.
    int64_t size(int32_t first, int32_t end) const;
    void save(int32_t first, int32_t end, char * data) const;
    void load(int32_t first, int32_t end, const char * data) const;
};

}  // namespace eagle
