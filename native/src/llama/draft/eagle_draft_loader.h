// Loading of drafts that llama.cpp's own loaders refuse, called from there. EAGLE-3 drafts in the extended layout
// (docs/formats.md): biases, q/k norms, fc_norm, any number of aux features, more than one layer; one in the stock
// layout never gets here. MTP heads with a vocabulary of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct llama_model;
struct llama_model_base;
struct llama_model_loader;

namespace eagle {

// The key under which a loaded draft says which of its layers have the sliding window: a character for each, 0 or 1.
constexpr const char * DRAFT_WINDOW_PATTERN = "eagle3.attention.sliding_window_pattern";

// True when the file carries the marker tensor that every extended draft has.
bool draft_is_extended(const llama_model_loader & loader);

void load_extended_draft(llama_model_base & model);

// llama.cpp's own graph would ignore what it does not know: it throws instead for an extended draft.
void require_stock_draft(const llama_model & model);

// Rows of the head in a file that holds only an MTP head, as FastMTP-32K files do, whose map d2t says which tokens they
// are: loads the map. The whole vocabulary's rows otherwise.
int64_t load_head_rows(llama_model_base & model, bool mtp_only);

// llama.cpp's own graph of an MTP head knows no map: it throws instead.
void require_stock_head(const llama_model & model);

std::string join(const std::vector<int32_t> & ids);

}  // namespace eagle
