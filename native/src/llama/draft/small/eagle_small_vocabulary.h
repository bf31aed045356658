// Comparison of two vocabularies: a small model can draft for a target only if both read and write the same tokens.
#pragma once

#include <string>

struct llama_vocab;

namespace eagle {

// Sizes may differ by this number of tokens: models of one family pad their vocabularies differently.
constexpr int MAX_VOCABULARY_DIFFERENCE = 128;

// Returns the first difference that prevents drafting, by the rules of llama.cpp's common/speculative.cpp; empty if
// there is none.
std::string vocabulary_difference(const llama_vocab & target, const llama_vocab & draft);

}  // namespace eagle
