// Tests the turns of the server's slots: prompts one at a time, oldest first, alternating with rounds of the slots that
// generate.

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "../src/llama-common/eagle_turn.h"

namespace {

enum State { SLOT_STATE_IDLE, SLOT_STATE_STARTED, SLOT_STATE_PROCESSING_PROMPT, SLOT_STATE_GENERATING };

struct Task {
    int id;
};

struct Slot {
    State state = SLOT_STATE_IDLE;
    const Task * task = nullptr;
    std::vector<int> spec_draft = {};
};

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

void prompts_and_rounds_take_turns() {
    const Task first{1}, second{2};
    const std::vector<Slot> slots = {{SLOT_STATE_GENERATING, &first}, {SLOT_STATE_STARTED, &second}, {}};
    eagle_server_turn turn;
    for (const bool is_prompt : {true, false, true, false}) {
        turn.next(slots, 512);
        require(turn.is_prompt == is_prompt, "one after the other");
        require(turn.n_generating == 1 && turn.longest_draft == EAGLE_EXACT_MAX_ROWS - 1, "who generates");
    }
}

// Slot 0 gets a new request whenever its prompt has been evaluated; the other slot's prompt must still have its turn.
void nobody_waits_for_ever() {
    std::vector<Task> tasks = {{7}, {5}};
    std::vector<Slot> slots = {{SLOT_STATE_STARTED, &tasks[0]}, {SLOT_STATE_PROCESSING_PROMPT, &tasks[1]}};
    eagle_server_turn turn;
    int n_read = 0;
    for (int i = 0; i < 10; i++) {
        turn.next(slots, 512);
        require(turn.is_prompt && turn.reads(slots[0]) != turn.reads(slots[1]), "one prompt");
        if (turn.reads(slots[0])) {
            tasks[0].id = 8 + i;
        } else {
            slots[1].state = SLOT_STATE_IDLE;
            n_read++;
            break;
        }
    }
    require(n_read == 1, "the oldest is read");
    turn.next(slots, 512);
    require(turn.reads(slots[0]), "then the next");
}

// A decode of the whole round has to fit into a batch, with drafts that are decoded again.
void a_round_fits_into_a_batch() {
    const Task task{1};
    std::vector<Slot> slots(5, {SLOT_STATE_GENERATING, &task});
    slots[0] = {};
    eagle_server_turn turn;
    for (const auto & [n_batch, longest] : std::vector<std::pair<int, int>>{{512, 17}, {22, 4}, {4, 0}}) {
        turn.next(slots, n_batch);
        require(turn.longest_draft == longest, "all slots have the same share");
    }
    slots[2].spec_draft.resize(9);
    turn.next(slots, 22);
    require(turn.longest_draft == 3, "the others share what is left");
}

}  // namespace

int main() {
    prompts_and_rounds_take_turns();
    nobody_waits_for_ever();
    a_round_fits_into_a_batch();
    return 0;
}
