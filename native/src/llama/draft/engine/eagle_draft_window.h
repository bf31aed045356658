// Chooses how many rows of a long text a draft attends to, by the tokens that it drafts right with one window and with
// others. Drafts are trained on short texts: over rows that are further away than any of them was, attention spreads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle {

class DraftWindow {
  public:
    // start: the longest text of the draft's training. widest: the rows that its memory holds.
    DraftWindow(int32_t start, int32_t widest);

    int32_t now() const { return windows_[now_]; }

    // Begins a round of a text of n_rows. Returns the windows that further drafts should have, for comparison; mostly
    // none.
    std::vector<int32_t> rivals(int32_t n_rows);

    // Reports how many of the compared tokens were right with `window`, the one of that round, and with a rival.
    void compared(int32_t window, int32_t n_right, int32_t rival, int32_t n_right_rival);

    // Keeps one window from now on.
    void fix(int32_t n);

  private:
    std::vector<int32_t> windows_;  // ascending, each twice the one before; the last one is all rows
    std::vector<int32_t> wins_;     // of each: comparisons that it has won, less those that it has lost
    size_t now_ = 0;
    int32_t n_rounds_ = 0;    // since the last comparison
    int32_t n_compared_ = 0;  // rounds with the same window

    void use(size_t window);
    int32_t interval() const;
};

}  // namespace eagle
