// State of one sequence in the draft: its K and V, and the target features that it has not evaluated yet.
#pragma once

#include <algorithm>
#include <cstdint>

#include "eagle_draft_memory.h"
#include "eagle_feature_store.h"
#include "ggml-cpp.h"

namespace eagle {

class DraftDevice;
struct DraftModel;
struct DraftParams;

struct DraftSequence {
    DraftSequence(const DraftModel & model, const DraftParams & params, DraftDevice & device);

    ggml_context_ptr ctx;  // of the memory's tensors
    ggml_backend_buffer_ptr buffer;
    FeatureStore features;
    DraftMemory memory;
    int32_t first_slot = 0;  // attention ignores the slots before it, which hold nothing of this text
    int32_t first_kept = 0;  // the slots before it were overwritten

    // Returns the first slot that the memory still holds and that attention does not ignore.
    int32_t first_held() const { return std::max(first_slot, first_kept); }

    // Notes that the slots before `end` are written.
    void note_written(int32_t end) { first_kept = std::max(first_kept, end - memory.n_ctx); }

    // The next row is written to `slot`. If rows before it were overwritten, only those from there on are visible.
    void truncate(int32_t slot) {
        first_slot = std::min(first_slot, slot);
        first_kept = std::min(first_kept, slot);
    }

    // Ignores all slots before `slot`, where the next row is written.
    void skip_to(int32_t slot) { first_slot = first_kept = slot; }
};

}  // namespace eagle
