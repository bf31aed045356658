// Chooses the server's slots to compute next.
#pragma once

#include <algorithm>
#include <type_traits>

#include "eagle_exact.h"

// The bits of a row differ between a prompt and a round, and those of a prompt depend on its pieces
// (docs/exactness.md). So the server evaluates one prompt at a time, alternating with rounds of the slots that
// generate. Oldest prompt first: ordering by slot number would starve later slots.
struct eagle_server_turn {
    bool is_prompt = false;
    int n_generating = 0;
    int oldest = -1;  // oldest task whose prompt is not evaluated yet; -1: none

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

    // Returns true if this slot's prompt is the next one.
    template <typename Slot>
    bool reads(const Slot & slot) const {
        return waits(slot) && slot.task->id == oldest;
    }

    // Limits drafts so that a round of all slots that generate stays exact.
    int longest_draft() const { return EAGLE_EXACT_MAX_ROWS / std::max(1, n_generating) - 1; }

  private:
    template <typename Slot>
    static bool waits(const Slot & slot) {
        using State = std::decay_t<decltype(slot.state)>;
        return slot.state == State::SLOT_STATE_STARTED || slot.state == State::SLOT_STATE_PROCESSING_PROMPT;
    }
};
