// Drafts looked up in the text so far: what followed the last occurrence of the newest three tokens, or two. Good for
// texts that repeat their input: edits, summaries, code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "llama.h"

class eagle_lookup {
  public:
    // Each looked up token has been right so often: a mean over the latest ones.
    double rate() const { return rate_; }

    void begin(const std::vector<llama_token> & text) {
        text_.clear();
        seen_.clear();
        said_.clear();
        extend(text);
    }

    // Up to n_max tokens after id_last, which follows `text`; what was said before is compared with them.
    std::vector<llama_token> draft(const std::vector<llama_token> & text, llama_token id_last, int n_max) {
        if (text.size() < text_.size() ||
            !std::equal(text_.end() - std::min<size_t>(text_.size(), 8), text_.end(),
                        text.begin() + (text_.size() - std::min<size_t>(text_.size(), 8)))) {
            begin(text);
        }
        extend(text);
        compare(id_last);
        said_at_ = text_.size() + 1;
        said_ = find(id_last, n_max);
        return said_;
    }

  private:
    static constexpr int SIZES[] = {3, 2};

    std::vector<llama_token> text_;
    std::unordered_map<uint64_t, size_t> seen_;  // tokens -> what follows their last occurrence
    std::vector<llama_token> said_;
    size_t said_at_ = 0;
    double rate_ = 0.5;

    // Of n tokens that end at `end`, the last of them `last`.
    uint64_t key(size_t end, int n, llama_token last) const {
        uint64_t key = (uint64_t) n;
        for (int i = n; i > 1; i--) {
            key = (key ^ (uint64_t) text_[end - i + 1]) * 0x9e3779b97f4a7c15;
            key ^= key >> 29;
        }
        return (key ^ (uint64_t) last) * 0x9e3779b97f4a7c15;
    }

    // What ends in a token is recorded when the next one comes, so that a tail never finds itself.
    void extend(const std::vector<llama_token> & text) {
        for (size_t i = text_.size(); i < text.size(); i++) {
            for (const int n : SIZES) {
                if ((int) i >= n) {
                    seen_[key(i - 1, n, text_[i - 1])] = i;
                }
            }
            text_.push_back(text[i]);
        }
    }

    std::vector<llama_token> find(llama_token id_last, int n_max) const {
        for (const int n : SIZES) {
            const auto found = (int) text_.size() >= n - 1 ? seen_.find(key(text_.size(), n, id_last)) : seen_.end();
            if (found != seen_.end()) {
                const size_t end = std::min(found->second + n_max, text_.size());
                std::vector<llama_token> ids(text_.begin() + found->second, text_.begin() + end);
                if ((int) ids.size() < n_max) {
                    ids.push_back(id_last);
                }
                return ids;
            }
        }
        return {};
    }

    void compare(llama_token id_last) {
        for (size_t i = 0; i < said_.size() && said_at_ + i <= text_.size(); i++) {
            const bool right = said_[i] == (said_at_ + i < text_.size() ? text_[said_at_ + i] : id_last);
            rate_ += ((right ? 1.0 : 0.0) - rate_) * 0.1;
            if (!right) {
                return;
            }
        }
    }
};
