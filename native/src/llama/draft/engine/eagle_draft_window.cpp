#include "eagle_draft_window.h"

#include <algorithm>

namespace eagle {

namespace {

constexpr int32_t NARROWEST = 256;
constexpr int32_t SHORT = 1024;  // rows of a text that a draft attends to without a comparison
constexpr int32_t MARGIN = 6;    // wins more than losses, for which the window changes
// Rounds between comparisons, and how many follow before that doubles. A comparison takes a part of a draft's time.
constexpr int32_t OFTEN = 2, RARELY = 64, N_PER_INTERVAL = 16;

}  // namespace

DraftWindow::DraftWindow(int32_t start, int32_t widest) {
    for (int32_t n = NARROWEST; n < widest; n *= 2) {
        windows_.push_back(n);
    }
    windows_.push_back(widest);
    const auto first = std::lower_bound(windows_.begin(), windows_.end(), start);
    use(std::min<size_t>(first - windows_.begin(), windows_.size() - 1));
}

void DraftWindow::use(size_t window) {
    now_ = window;
    wins_.assign(windows_.size(), 0);
    n_rounds_ = n_compared_ = 0;
}

void DraftWindow::fix(int32_t n) {
    windows_ = {n};
    use(0);
}

int32_t DraftWindow::interval() const {
    int32_t n = OFTEN;
    for (int32_t left = n_compared_; left >= N_PER_INTERVAL && n < RARELY; left -= N_PER_INTERVAL) {
        n *= 2;
    }
    return n;
}

std::vector<int32_t> DraftWindow::rivals(int32_t n_rows) {
    const size_t all = std::lower_bound(windows_.begin(), windows_.end() - 1, n_rows) - windows_.begin();
    std::vector<int32_t> found;
    for (size_t i = n_rows > SHORT ? 0 : now_; i <= all; i++) {
        if (i != std::min(now_, all)) {
            found.push_back(windows_[i]);
        }
    }
    if (found.empty() || ++n_rounds_ < interval()) {
        return {};
    }
    n_rounds_ = 0;
    n_compared_++;
    return found;
}

void DraftWindow::compared(int32_t window, int32_t n_right, int32_t rival, int32_t n_right_rival) {
    const size_t i = std::lower_bound(windows_.begin(), windows_.end() - 1, rival) - windows_.begin();
    if (window != now() || rival != windows_[i] || i == now_) {
        return;  // the window has changed since
    }
    wins_[i] = std::max(wins_[i] + (n_right_rival > n_right) - (n_right_rival < n_right), -MARGIN);
    if (wins_[i] >= MARGIN) {
        use(i);
    }
}

}  // namespace eagle
