// State of one sequence in the draft: its K and V, and the target features that it has not evaluated yet.
#pragma once

#include <cstdint>

#include "eagle_draft_memory.h"
#include "eagle_feature_store.h"
#include "ggml-cpp.h"

namespace eagle {

class DraftDevice;
struct DraftModel;
struct DraftParams;

struct DraftSequence {
    DraftSequence(const DraftModel & model, const DraftParams & params, int64_t n_ctx, DraftDevice & device);

    ggml_context_ptr ctx;  // of the memory's tensors
    ggml_backend_buffer_ptr buffer;
    FeatureStore features;
    DraftMemory memory;
    int32_t first_slot = 0;  // attention ignores the slots before it, which hold nothing of this text
};

}  // namespace eagle
