#include "eagle_ordinary_tokens.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "gguf.h"
#include "llama-impl.h"

namespace eagle {

namespace {

// The texts that llama.cpp's loader searches, except <|...|>, <｜...｜> and ▁<...>: ordinary text never has these
// forms, and files whose types are wrong depend on the search.
const char SEARCHED[] =
    "</s> <eos> [EOS] <EOT> _<EOT> [EOT] [e~[ <turn|> <end_of_turn> <end_of_utterance> <|tool_response> "
    "<fim-prefix> <fim_prefix> <PRE> <fim-suffix> <fim_suffix> <SUF> <fim-middle> <fim_middle> <MID> "
    "<fim-pad> <fim_pad> <PAD> [PAD] <fim-repo> <REPO> <reponame>";

bool has_types(const gguf_context * file) {
    return gguf_find_key(file, "tokenizer.ggml.token_type") >= 0;
}

std::string chat_template(const gguf_context * file) {
    const int64_t key = gguf_find_key(file, "tokenizer.chat_template");
    return key >= 0 && gguf_get_kv_type(file, key) == GGUF_TYPE_STRING ? gguf_get_val_str(file, key) : "";
}

}  // namespace

OrdinaryTokens::OrdinaryTokens(const gguf_context * file, enum llama_vocab_type type, const SpecialTokens & named,
                               Texts & texts, const std::vector<llama_vocab::token_data> & tokens)
    : texts_(texts) {
    if (!has_types(file)) {
        return;  // all tokens count as normal then
    }
    const std::string used = chat_template(file);
    std::string names, text;
    for (std::istringstream searched(SEARCHED); searched >> text;) {
        const auto found = texts.find(text);
        if (found == texts.end()) {
            continue;
        }
        const llama_token id = found->second;
        const auto attr = tokens[id].attr;
        if (attr != LLAMA_TOKEN_ATTR_NORMAL && attr != LLAMA_TOKEN_ATTR_USER_DEFINED) {
            continue;
        }
        // Byte-level BPE merges characters: a template's text never becomes a normal token that has no merges.
        const bool in_template = (attr == LLAMA_TOKEN_ATTR_USER_DEFINED || type != LLAMA_VOCAB_TYPE_BPE) &&
                                 used.find(text) != std::string::npos;
        const auto is_id = [id](const SpecialTokens::value_type & each) { return each.second == id; };
        if (!in_template && std::none_of(named.begin(), named.end(), is_id)) {
            names += (names.empty() ? "" : ", ") + std::to_string(id) + " '" + text + "'";
            hidden_.push_back(texts.extract(found));
        }
    }
    if (!hidden_.empty()) {
        LLAMA_LOG_WARN("%s: not control tokens, according to the file's types: %s\n", __func__, names.c_str());
    }
}

OrdinaryTokens::~OrdinaryTokens() {
    for (auto & node : hidden_) {
        texts_.insert(std::move(node));
    }
}

bool is_phi3_vocabulary(const std::string & arch, enum llama_vocab_type type, const OrdinaryTokens::Texts & texts) {
    const char * const stated[] = {"<unk>", "<s>", "</s>", "<|endoftext|>"};
    return arch == "phi3" && type == LLAMA_VOCAB_TYPE_SPM &&
           std::all_of(std::begin(stated), std::end(stated), [&](const char * text) { return texts.count(text) > 0; });
}

}  // namespace eagle
