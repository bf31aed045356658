// Tokens of a stream whose text is held back: it may begin a stop text, or it ends within a character.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "llama.h"
#include "server-task.h"

// Entries of log-probabilities that belong to the text: each holds its own token's text, and those that begin behind
// the end that a stop text has set are left out. n_text: bytes of the text. Tokens without text, such as the end of the
// answer, remain in other answers.
template <typename Slot>
size_t eagle_n_entries(const Slot & slot, size_t n_text) {
    const bool is_stopped = slot.stop == STOP_TYPE_WORD;
    const size_t n_entries = std::min(slot.generated_token_probs.size(), slot.eagle_ends.size());
    size_t n = is_stopped ? 0 : slot.generated_token_probs.size();
    while (is_stopped && n < n_entries && (n == 0 ? 0 : slot.eagle_ends[n - 1]) < n_text) {
        n++;
    }
    return n;
}

// Returns the next entry of a stream. A result without probabilities, such as the rest of a text, has none.
template <typename Slot, typename Result>
Result eagle_entry(Slot & slot, const Result & result) {
    const bool has_entry = !result.probs.empty() && slot.eagle_n_sent < slot.generated_token_probs.size();
    return has_entry ? slot.generated_token_probs[slot.eagle_n_sent++] : result;
}

// Sends one event for each token whose entry has waited for its text, without text.
template <typename Slot, typename Send>
void eagle_send_waiting(Slot & slot, size_t n_entries, const Send & send) {
    while (slot.eagle_n_sent < n_entries) {
        const size_t at = slot.eagle_n_sent;
        auto token = slot.generated_token_probs[at];
        token.text_to_send.clear();
        send(token);
        slot.eagle_n_sent = at + 1;  // also behind an entry that has no probabilities
    }
}

// Sends the event of a token. With log-probabilities it waits until it is known whether its text belongs to the answer.
template <typename Slot, typename Result, typename Send>
void eagle_send_token(Slot & slot, const Result & result, bool is_shown, const Send & send) {
    if (result.probs.empty()) {
        return send(result);
    }
    const size_t n_entries = is_shown ? eagle_n_entries(slot, slot.generated_text.size()) : 0;
    if (slot.eagle_n_sent < n_entries) {
        eagle_send_waiting(slot, n_entries - 1, send);
        send(result);
    }
}

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
    if (slot.task->params.sampling.n_probs > 0) {
        eagle_send_waiting(slot, slot.generated_token_probs.size(), send);
    }
    send(rest);
}
