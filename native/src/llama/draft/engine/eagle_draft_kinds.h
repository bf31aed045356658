// The kinds of draft models, by architecture.
#pragma once

#include <memory>

#include "eagle_draft_model.h"

struct llama_context;
struct llama_model;

namespace eagle {

// Returns true if the model's architecture is supported as a draft.
bool is_known_draft(const llama_model & draft);

// Reads a draft of any supported architecture. Throws EAGLE_ERR_INCOMPATIBLE if it is not supported or does not fit the
// target.
std::unique_ptr<DraftModel> read_draft_model(const llama_model & draft, const llama_context & target);

}  // namespace eagle
