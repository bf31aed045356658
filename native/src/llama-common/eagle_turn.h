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
    int oldest = -1;        // oldest task whose prompt is not evaluated yet; -1: none
    int longest_draft = 0;  // of each slot, so that a round of all slots that generate is one exact decode

    // n_batch: most rows of a decode.
    template <typename Slots>
    void next(const Slots & slots, int n_batch) {
        n_generating = 0;
        oldest = -1;
        int n_rows = std::min(n_batch, EAGLE_EXACT_MAX_ROWS), n_new = 0;
        for (const auto & slot : slots) {
            if (slot.state == std::decay_t<decltype(slot.state)>::SLOT_STATE_GENERATING) {
                n_generating++;
                // What a target without a rollback of single rows has accepted is decoded again, as a draft.
                n_rows -= slot.spec_draft.empty() ? 0 : (int) slot.spec_draft.size() + 1;
                n_new += slot.spec_draft.empty();
            }
            if (waits(slot) && (oldest < 0 || slot.task->id < oldest)) {
                oldest = slot.task->id;
            }
        }
        longest_draft = n_rows / std::max(1, n_new) - 1;
        is_prompt = oldest >= 0 && (n_generating == 0 || !is_prompt);
    }

    // Returns true if this slot's prompt is the next one.
    template <typename Slot>
    bool reads(const Slot & slot) const {
        return waits(slot) && slot.task->id == oldest;
    }

  private:
    template <typename Slot>
    static bool waits(const Slot & slot) {
        using State = std::decay_t<decltype(slot.state)>;
        return slot.state == State::SLOT_STATE_STARTED || slot.state == State::SLOT_STATE_PROCESSING_PROMPT;
    }
};
