// Tokens that llama.cpp would make control and end tokens because of their text, although the file types them
// otherwise.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "llama-arch.h"
#include "llama-vocab.h"

struct gguf_context;

namespace eagle {

// Hides such tokens from searches in a vocabulary's map of texts as long as the object exists. Qwen's "</s>" is one: an
// entry of the vocabulary that its tokenizer never produces, so "<s>1</s>" is plain text. A key of the file that names
// the token, or a template that contains a token matched as a whole, overrides the type.
class OrdinaryTokens {
  public:
    using Texts = std::unordered_map<std::string, llama_token>;
    using SpecialTokens = std::vector<std::pair<llm_kv, int32_t &>>;

    // named: the special tokens of the file's keys
    OrdinaryTokens(const gguf_context * file, enum llama_vocab_type type, const SpecialTokens & named, Texts & texts,
                   const std::vector<llama_vocab::token_data> & tokens);
    ~OrdinaryTokens();
    OrdinaryTokens(const OrdinaryTokens &) = delete;
    OrdinaryTokens & operator=(const OrdinaryTokens &) = delete;

  private:
    Texts & texts_;
    std::vector<Texts::node_type> hidden_;
};

// Returns true for the vocabulary of Phi-3, whose special tokens include the white space after them.
bool is_phi3_vocabulary(const std::string & arch, enum llama_vocab_type type, const OrdinaryTokens::Texts & texts);

}  // namespace eagle
