// The end of a stream's text.
#pragma once

#include <algorithm>
#include <type_traits>

#include "llama.h"

// Sends what a stream has held back: the beginning of a stop text or of a character. `always`: even if that is nothing.
template <typename Slot, typename Send>
void eagle_send_rest(Slot & slot, const Send & send, bool always = false) {
    const size_t n_sent = std::min(slot.n_sent_text, slot.generated_text.size());
    if (!slot.task->params.stream || (!always && n_sent == slot.generated_text.size())) {
        return;
    }
    typename std::decay_t<decltype(slot.generated_token_probs)>::value_type rest;
    rest.tok = LLAMA_TOKEN_NULL;
    rest.text_to_send = slot.generated_text.substr(n_sent);
    slot.n_sent_text = slot.generated_text.size();
    send(rest);
}
