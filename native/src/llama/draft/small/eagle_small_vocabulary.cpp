#include "eagle_small_vocabulary.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "eagle_error.h"
#include "llama.h"

namespace eagle {

namespace {

constexpr int FIRST_COMPARED = 5;  // vocabularies of one family may name the control tokens before it differently

// Returns the difference of a special token that one of the vocabularies may add to a text; empty if there is none.
std::string special_difference(const char * name, bool is_added_tgt, bool is_added_dft, llama_token tgt,
                               llama_token dft) {
    if (is_added_tgt != is_added_dft) {
        return format("the target %s %s token to texts, the draft %s", is_added_tgt ? "adds a" : "adds no", name,
                      is_added_dft ? "does" : "does not");
    }
    return is_added_tgt && tgt != dft ? format("the %s token is %d in the target and %d in the draft", name, tgt, dft)
                                      : std::string();
}

}  // namespace

std::string vocabulary_difference(const llama_vocab & target, const llama_vocab & draft) {
    if (llama_vocab_type(&target) != llama_vocab_type(&draft)) {
        return format("the target's tokenizer is of type %d, the draft's of type %d", llama_vocab_type(&target),
                      llama_vocab_type(&draft));
    }
    const std::string bos = special_difference("BOS", llama_vocab_get_add_bos(&target), llama_vocab_get_add_bos(&draft),
                                               llama_vocab_bos(&target), llama_vocab_bos(&draft));
    const std::string eos = special_difference("EOS", llama_vocab_get_add_eos(&target), llama_vocab_get_add_eos(&draft),
                                               llama_vocab_eos(&target), llama_vocab_eos(&draft));
    if (!bos.empty() || !eos.empty()) {
        return bos.empty() ? eos : bos;
    }
    const int n_tgt = llama_vocab_n_tokens(&target), n_dft = llama_vocab_n_tokens(&draft);
    if (std::abs(n_tgt - n_dft) > MAX_VOCABULARY_DIFFERENCE) {
        return format("the target has %d tokens, the draft %d", n_tgt, n_dft);
    }
    for (int id = FIRST_COMPARED; id < std::min(n_tgt, n_dft); id++) {
        const char *tgt = llama_vocab_get_text(&target, id), *dft = llama_vocab_get_text(&draft, id);
        if (std::strcmp(tgt, dft) != 0) {
            return format("token %d is '%s' in the target and '%s' in the draft", id, tgt, dft);
        }
    }
    return {};
}

}  // namespace eagle
