// Splits text into words as tokenizer.json does for Tekken and GPT-4o, whose words end where the case changes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace eagle {

// Splits pieces of a UTF-8 text. pieces, result: lengths in characters. Returns nothing if `expression`, llama.cpp's
// approximation of the tokenizer's expression, is not of this kind. llama.cpp's own search knows the case of ASCII
// letters alone and ends a word before a combining mark.
std::vector<size_t> split_cased_words(const std::string & text, const std::string & expression,
                                      const std::vector<size_t> & pieces);

}  // namespace eagle
