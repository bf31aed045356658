// Tests the choice of a draft's window: the one in which most tokens are right, from comparisons with others.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "eagle_draft_window.h"

namespace {

using eagle::DraftWindow;

int n_failed = 0;

void check(bool is_right, const char * what) {
    if (!is_right) {
        std::fprintf(stderr, "failed: %s\n", what);
        n_failed++;
    }
}

using Rate = std::function<double(int32_t)>;  // of right tokens, by window

struct Run {
    int32_t window = 0;
    int n_comparisons = 0;
    double share_at = 0;  // rounds with the last window, of the second half
};

// Drafts a text from n_rows on for many rounds. Some tokens are right with all windows.
Run run(int32_t start, int32_t widest, int32_t n_rows, int n_rounds, const Rate & rate) {
    DraftWindow choice(start, widest);
    std::mt19937 random(1);
    std::uniform_real_distribution<double> chance;
    Run result;
    std::vector<int32_t> used;
    for (int i = 0; i < n_rounds; i++) {
        const std::vector<int32_t> rivals = choice.rivals(n_rows + i);
        const int32_t rows = n_rows + i, window = choice.now();
        used.push_back(window);
        const double luck = chance(random);
        for (const int32_t rival : rivals) {
            choice.compared(window, luck < rate(std::min(window, rows)), rival, luck < rate(std::min(rival, rows)));
        }
        result.n_comparisons += !rivals.empty();
    }
    result.window = choice.now();
    result.share_at = 2.0 * std::count(used.begin() + n_rounds / 2, used.end(), result.window) / n_rounds;
    return result;
}

void check_directions() {
    const Rate falls = [](int32_t n) { return n <= 512 ? 0.7 : 0.4; };
    check(run(100000, 8192, 6000, 1200, falls).window <= 512, "a draft that falls over many rows gets few");
    check(run(512, 8192, 6000, 1200, falls).window == 512, "it keeps the length of its training");
    const Rate needs_all = [](int32_t n) { return n >= 6000 ? 1.0 : 0.6; };
    check(run(100000, 8192, 6000, 1200, needs_all).share_at == 1, "a draft that is right with all rows keeps them");
    const Rate rises = [](int32_t n) { return n >= 4096 ? 0.8 : n >= 2048 ? 0.65 : n >= 1024 ? 0.5 : 0.35; };
    check(run(512, 8192, 6000, 2000, rises).window >= 4096, "a start that is too narrow widens");
    const Rate peaks = [](int32_t n) { return n == 1024 ? 0.7 : 0.4; };
    for (const int32_t start : {256, 8192}) {
        const Run found = run(start, 8192, 6000, 2000, peaks);
        check(found.window == 1024 && found.share_at > 0.9, "the best window from both sides");
    }
}

void check_costs() {
    const Rate even = [](int32_t) { return 0.5; };
    check(run(100000, 8192, 6000, 2000, even).n_comparisons <= 125, "few comparisons once they are even");
    check(run(512, 8192, 300, 200, even).n_comparisons == 0, "none while the window holds a short text");
    check(run(100000, 8192, 300, 700, even).n_comparisons == 0, "none for texts that are short themselves");
    check(run(2048, 200, 100, 500, even).n_comparisons == 0, "none where the memory holds no second window");
}

void check_fixed() {
    DraftWindow choice(512, 8192);
    choice.fix(300);
    bool is_asked = false;
    for (int i = 0; i < 500; i++) {
        is_asked = is_asked || !choice.rivals(6000).empty();
    }
    check(choice.now() == 300 && !is_asked, "a fixed window stays");
    DraftWindow late(512, 8192);
    for (int i = 0; i < 50; i++) {
        late.compared(4096, 0, 512, 1);
        late.compared(512, 0, 300, 1);
    }
    check(late.now() == 512, "a comparison of other windows says nothing");
}

}  // namespace

int main() {
    check_directions();
    check_costs();
    check_fixed();
    return n_failed == 0 ? 0 : 1;
}
