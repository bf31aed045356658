// Checks and candidates for the sampling of llama.cpp's common library.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "eagle_candidates.h"
#include "eagle_sampler.h"

// Throws the reason why llama.cpp could not create a sampler for this grammar.
[[noreturn]] inline void eagle_refuse_grammar(const llama_vocab * vocab, const std::string & text) {
    const bool is_sound = eagle_grammar_check(vocab, text.c_str(), "root") == EAGLE_OK;
    throw std::invalid_argument(is_sound ? "the grammar cannot be used" : eagle_last_error());
}

inline const char * eagle_unfit_beginning() {
    return "the last message, which the answer continues, does not fit the form that the answer must have: leave it "
           "out, or ask for no call and no response_format";
}

// Applies a grammar's sampler. Throws if it allows no candidate or reaches too many states. Where it allows the end of
// the text alone, the likeliest end token is the only candidate left: the chain chooses it although `ignore_eos` gives
// it a bias of minus infinity.
inline void eagle_apply(llama_context * ctx, llama_sampler * grammar, llama_token_data_array * candidates) {
    if (eagle_sampler_apply(grammar, candidates) != EAGLE_OK) {
        throw std::runtime_error(eagle_last_error());
    }
    const llama_vocab * vocab = llama_model_get_vocab(llama_get_model(ctx));
    const auto *begin = candidates->data, *end = begin + candidates->size;
    const auto is_other = [&](const llama_token_data & one) {
        return one.logit != -INFINITY && !llama_vocab_is_eog(vocab, one.id);
    };
    if (std::none_of(begin, end, is_other)) {
        candidates->data[0] = *std::max_element(begin, end, [](auto & a, auto & b) { return a.logit < b.logit; });
        candidates->size = 1;
    }
}

// Throws if the row's logits are no numbers to choose from. Then writes the candidates that suffice for the chain to
// `held` and `found`; collecting those of a large vocabulary would
// take as long as a layer. Returns false if all are needed. `held` is kept small, because the server copies
// the sampler with it in every round.
inline bool eagle_set_candidates(llama_context * ctx, int idx, llama_sampler * chain, bool needs_all,
                                 std::vector<llama_token_data> & held, llama_token_data_array & found) {
    if (eagle_require_numbers(ctx, idx) == EAGLE_ERR_NUMBERS) {
        throw std::runtime_error(eagle_last_error());
    }
    if (needs_all) {
        return false;
    }
    static thread_local std::vector<llama_token_data> room;
    room.resize((size_t) llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))));
    const int32_t n = eagle_candidates(ctx, chain, idx, room.data());
    if (n > 0) {
        held.assign(room.begin(), room.begin() + n);
        found = {held.data(), held.size(), -1, false};
    }
    return n > 0;
}
