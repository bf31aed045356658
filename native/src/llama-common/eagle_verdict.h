// What becomes of a draft model's tokens: useless drafts are reported, a draft of another target or a dead head, and
// the acceptance by position is counted for the price of the next drafts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

constexpr int64_t EAGLE_COUNTED_TOKENS = 500;  // drafted tokens between two reports

// Drafted tokens whose predecessors in the draft were accepted, and the accepted ones, by position in the draft.
class eagle_draft_counts {
  public:
    void verified(int n_drafted, int n_accepted) {
        if (n_drafted > (int) tried_.size()) {
            tried_.resize(n_drafted, 0);
            accepted_.resize(n_drafted, 0);
        }
        for (int i = 0; i < n_drafted && i <= n_accepted; i++) {
            tried_[i]++;
            accepted_[i] += i < n_accepted;
            n_tried_++;
        }
    }

    bool is_due() const { return n_tried_ >= EAGLE_COUNTED_TOKENS; }

    bool is_empty() const { return n_tried_ == 0; }

    // Returns the counts since the last call, for the log.
    std::string text() {
        const std::string found = "drafts by position: tried" + listed(tried_) + "; accepted" + listed(accepted_);
        *this = eagle_draft_counts();
        return found;
    }

  private:
    std::vector<int64_t> tried_, accepted_;
    int64_t n_tried_ = 0;

    static std::string listed(const std::vector<int64_t> & counts) {
        std::string text;
        for (int64_t count : counts) {
            text += " " + std::to_string(count);
        }
        return text;
    }
};
