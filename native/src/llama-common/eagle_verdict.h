// Detects useless drafts: a draft model of another target, or a dead head.
#pragma once

#include <cstdint>
#include <string>

constexpr int64_t EAGLE_VERDICT_TOKENS = 300;  // drafted tokens before the first verdict
constexpr int64_t EAGLE_VERDICT_SHARE = 100;   // fewer than one accepted token of this many is too few

class eagle_draft_verdict {
  public:
    void verified(int n_drafted, int n_accepted) {
        n_drafted_ += n_drafted;
        n_accepted_ += n_accepted;
    }

    // True once, if the drafts are useless.
    bool is_due() {
        const bool is_useless = n_drafted_ >= EAGLE_VERDICT_TOKENS && n_accepted_ * EAGLE_VERDICT_SHARE < n_drafted_;
        const bool found = is_useless && !is_reported_;
        is_reported_ |= is_useless;
        return found;
    }

    std::string text() const {
        const std::string of = " of " + std::to_string(n_drafted_) + " drafted tokens ";
        return (n_accepted_ == 0 ? "none" + of + "was" : "only " + std::to_string(n_accepted_) + of + "were") +
               " accepted: wrong draft for this target, or a dead head";
    }

  private:
    int64_t n_drafted_ = 0, n_accepted_ = 0;
    bool is_reported_ = false;
};
