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
    int32_t end_slot = 0;    // largest one that was written, plus 1

    // Returns the first slot that the memory still holds and that attention does not ignore.
    int32_t first_held() const { return std::max(first_slot, end_slot - memory.n_ctx); }
};

}  // namespace eagle
