// Loading of drafts in the extended layout (docs/formats.md): biases, q/k norms, fc_norm, any number of aux features,
// more than one layer. Called from llama.cpp's eagle3 loader; a draft in the stock layout never gets here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct llama_model;
struct llama_model_base;
struct llama_model_loader;

namespace eagle {

// True when the file carries the marker tensor that every extended draft has.
bool draft_is_extended(const llama_model_loader & loader);

void load_extended_draft(llama_model_base & model);

// llama.cpp's own graph would ignore what it does not know: it throws instead for an extended draft.
void require_stock_draft(const llama_model & model);

std::string join(const std::vector<int32_t> & ids);

}  // namespace eagle
