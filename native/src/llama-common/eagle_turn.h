// Which of the server's slots are computed next.
#pragma once

#include <algorithm>
#include <type_traits>

#include "eagle_exact.h"

// A row's bits depend on whether it is read as part of a prompt or of a round, and a prompt's on how it is cut
// (docs/exactness.md): so prompts are read one at a time and take turns with the slots that generate. The oldest is
// first: by the order of slots, one behind others that are asked again and again would wait for ever.
struct eagle_server_turn {
    bool is_prompt = false;
    int n_generating = 0;
    int oldest = -1;  // task whose prompt is not read yet

    template <typename Slots>
    void next(const Slots & slots) {
        n_generating = 0;
        oldest = -1;
        for (const auto & slot : slots) {
            n_generating += slot.state == std::decay_t<decltype(slot.state)>::SLOT_STATE_GENERATING;
            if (waits(slot) && (oldest < 0 || slot.task->id < oldest)) {
                oldest = slot.task->id;
            }
        }
        is_prompt = oldest >= 0 && (n_generating == 0 || !is_prompt);
    }

    // Whether this slot's prompt is the one that is read.
    template <typename Slot>
    bool reads(const Slot & slot) const {
        return waits(slot) && slot.task->id == oldest;
    }

    // Such that the rows of all slots that generate are few enough to keep their bits.
    int longest_draft() const { return EAGLE_EXACT_MAX_ROWS / std::max(1, n_generating) - 1; }

  private:
    template <typename Slot>
    static bool waits(const Slot & slot) {
        using State = std::decay_t<decltype(slot.state)>;
        return slot.state == State::SLOT_STATE_STARTED || slot.state == State::SLOT_STATE_PROCESSING_PROMPT;
    }
};
