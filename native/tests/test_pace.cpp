// Lengths of drafts: long where they are accepted and rows are cheap, short where many share the batch, none where they
// do not pay, and tried again now and then.

#include <cstdio>
#include <cstdlib>

#include "../src/llama-common/eagle_pace.h"

namespace {

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

// Rounds of one sequence whose drafts are accepted up to n_good tokens; a row costs row_ms beside the 10 of a decode.
// Every so many rounds another program holds one up.
eagle_pace after_rounds(int n_good, double row_ms, int stall_every = 1000) {
    eagle_pace pace(8, 8);
    for (int round = 0; round < 200; round++) {
        const int n = round % 9;
        pace.drafted(n, n * 0.5);
        pace.decoded(1 + n, (10 + (1 + n) * row_ms) * (round % stall_every == stall_every - 1 ? 40 : 1));
        pace.accepted(0, n, std::min(n, n_good));
    }
    return pace;
}

int tries(eagle_pace & pace, int n_rounds) {
    int found = 0;
    for (int round = 0; round < n_rounds; round++) {
        found += pace.length(0, 1);
    }
    return found;
}

}  // namespace

int main() {
    eagle_pace good = after_rounds(8, 0.5);
    require(good.length(0, 1) == 8, "all that is accepted is drafted");
    eagle_pace bad = after_rounds(0, 0.5);
    const int at_first = tries(bad, 240), later = tries(bad, 240);
    require(at_first >= 2 && at_first <= 6, "what is never accepted is tried now and then");
    require(later < at_first, "and ever more seldom");
    bad.began(0);
    require(tries(bad, 240) >= at_first, "but for another text");
    eagle_pace shared = after_rounds(2, 3.0);
    require(shared.length(0, 8) <= shared.length(0, 1), "dear rows are not spent where eight share them");
    for (int every = 5; every < 18; every++) {
        eagle_pace disturbed = after_rounds(8, 0.5, every);
        require(disturbed.length(0, 1) >= 6, "what other programs hold up shortens no draft");
    }
    require(good.length(1, 1) > 0, "a sequence that has not begun is given a draft");
    require(good.free_length(0, 0.2, 8, 1) == 0, "guesses give way to drafts that are right");
    require(bad.free_length(0, 0.95, 8, 1) == 8, "and are taken where drafts are wrong");
    require(bad.free_length(0, 0.95, 3, 1) == 3, "as many as there are");
    require(bad.free_length(0, 0.0, 8, 1) == 0, "unless they are wrong, too");
    std::puts("ok");
}
