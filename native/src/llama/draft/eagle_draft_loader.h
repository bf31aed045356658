// Loads drafts that llama.cpp's own loaders refuse; those call it. EAGLE-3 drafts in the extended layout
// (docs/formats.md): biases, q/k norms, fc_norm, mask states, any number of aux features, more than one layer.
// llama.cpp loads drafts in the stock layout itself. Also loads MTP heads with their own vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct ggml_tensor;
struct LLM_TN_IMPL;
struct llama_model;
struct llama_model_base;
struct llama_model_loader;

namespace eagle {

// Metadata key of a loaded draft: one character per layer, 1 if the layer has a sliding window, else 0.
constexpr const char * DRAFT_WINDOW_PATTERN = "eagle3.attention.sliding_window_pattern";

// Returns true if the file has the marker tensor of the extended layout.
bool draft_is_extended(const llama_model_loader & loader);

void load_extended_draft(llama_model_base & model);

// Tensors of a DSpark draft's Markov head that is gated or recurrent.
constexpr const char * MARKOV_GATE = "markov_w2.gate.weight";
constexpr const char * MARKOV_GATE_BIAS = "markov_w2.gate.bias";

// Loads the head of a file that holds only an MTP head with the vocabulary map d2t (FastMTP-32K), and the map, when the
// loader of its architecture creates the tensor `name`. Returns null for other tensors and files. Also loads the gate
// of a Markov head, with its w2.
ggml_tensor * load_trimmed_head(llama_model_base & model, const LLM_TN_IMPL & name, int flags);

// Throws for a model that llama.cpp's own graphs cannot compute: an extended draft and a Markov head with a gate, whose
// further tensors they would silently ignore, and an MTP head with a vocabulary map.
void require_stock_graph(const llama_model & model, bool is_mtp);

std::string join(const std::vector<int32_t> & ids);

}  // namespace eagle
