#include "eagle_draft_memory.h"

#include "ggml-backend.h"

namespace eagle {

namespace {

// Calls `use` with each tensor, and the offset and size of the slots in bytes.
template <typename Use>
void each_side(const DraftMemory & memory, int32_t first, int32_t end, Use use) {
    for (const auto * side : {&memory.k, &memory.v}) {
        for (ggml_tensor * t : *side) {
            memory.each_range(first, end, [&](int32_t at, int32_t n) { use(t, t->nb[1] * at, t->nb[1] * n); });
        }
    }
}

}  // namespace

int64_t DraftMemory::size(int32_t first, int32_t end) const {
    int64_t n_bytes = 0;
    each_side(*this, first, end, [&](const ggml_tensor *, size_t, size_t size) { n_bytes += (int64_t) size; });
    return n_bytes;
}

void DraftMemory::save(int32_t first, int32_t end, char * data) const {
    each_side(*this, first, end, [&](const ggml_tensor * t, size_t offset, size_t size) {
        ggml_backend_tensor_get(t, data, offset, size);
        data += size;
    });
}

void DraftMemory::load(int32_t first, int32_t end, const char * data) const {
    each_side(*this, first, end, [&](ggml_tensor * t, size_t offset, size_t size) {
        ggml_backend_tensor_set(t, data, offset, size);
        data += size;
    });
}

}  // namespace eagle
