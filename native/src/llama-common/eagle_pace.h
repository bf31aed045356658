// How long drafts should be: by each sequence's acceptance, and by what rows and drafted tokens cost, measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

class eagle_pace {
  public:
    eagle_pace(int n_seq, int n_max)
        : n_max_(n_max), rates_(n_seq, 0.6), seen_(n_seq, 5), idle_(n_seq, 0), wait_(n_seq, FIRST_WAIT) {}

    // A decode of so many rows took so long; tokens were drafted in so long. What other programs held up counts in
    // part.
    void decoded(int n_rows, double ms) {
        if (n_ > FEW) {
            ms = std::min(ms, MOST * decode_ms(n_rows));
        }
        for (double * sum : {&n_, &x_, &y_, &xx_, &xy_, &yy_}) {
            *sum *= MEMORY;
        }
        n_ += 1;
        x_ += n_rows;
        y_ += ms;
        xx_ += (double) n_rows * n_rows;
        xy_ += n_rows * ms;
        yy_ += ms * ms;
    }

    void drafted(int n_tokens, double ms) {
        if (n_tokens > 0) {
            const double each = ms / n_tokens;
            token_ms_ += token_ms_ == 0 ? each : (std::min(each, MOST * token_ms_) - token_ms_) * 0.1;
        }
    }

    void accepted(int seq, int n_drafted, int n_accepted) {
        for (int i = 0; i < std::min(n_drafted, n_accepted + 1); i++) {
            seen_[seq] = std::min(seen_[seq] + 1, 25);
            rates_[seq] += ((i < n_accepted ? 1.0 : 0.0) - rates_[seq]) / seen_[seq];
        }
    }

    // Another text, which may be easier.
    void began(int seq) { wait_[seq] = FIRST_WAIT; }

    // Tokens to draft for a sequence of n that are decoded together: the most tokens per time. Where none pays, one is
    // tried now and then, ever more seldom.
    int length(int seq, int n) {
        const int best = longest_worth(rates_[seq], n_max_, n, token_ms_);
        if (best > 0) {
            wait_[seq] = FIRST_WAIT;
            idle_[seq] = 0;
        } else if (++idle_[seq] >= wait_[seq]) {
            wait_[seq] = std::min(2 * wait_[seq], LONGEST_WAIT);
            idle_[seq] = 0;
            return 1;
        }
        return best;
    }

    // The same for tokens that cost nothing to draft, up to n_max, each right with that probability; 0 where the
    // sequence's own drafts promise more.
    int free_length(int seq, double rate, int n_max, int n) const {
        const int own = longest_worth(rates_[seq], n_max_, n, token_ms_);
        const int best = longest_worth(rate, n_max, n, 0);
        return speed(rate, best, n, 0) >= speed(rates_[seq], own, n, token_ms_) ? best : 0;
    }

  private:
    static constexpr double MEMORY = 0.98, FEW = 8, MOST = 2;
    static constexpr int FIRST_WAIT = 24, LONGEST_WAIT = 384;  // rounds

    int n_max_;
    std::vector<double> rates_;     // per sequence: share of drafted tokens that are accepted
    std::vector<int> seen_;         // drafted tokens that a rate is the mean of
    std::vector<int> idle_, wait_;  // per sequence: rounds since the last draft, and until the next try
    double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;  // of the line through rows and times
    double token_ms_ = 0;

    int longest_worth(double rate, int n_max, int n, double token_ms) const {
        int best = 0;
        for (int k = 1; k <= n_max; k++) {
            best = speed(rate, k, n, token_ms) > speed(rate, best, n, token_ms) ? k : best;
        }
        return best;
    }

    // Emitted tokens of a sequence per ms of the round.
    double speed(double rate, int k, int n, double token_ms) const {
        const double r = std::min(rate, 0.99);
        return (1 - std::pow(r, k + 1)) / (1 - r) / (decode_ms(n * (k + 1)) + n * k * token_ms);
    }

    // A row more costs a tenth of the first, until the times of different numbers of rows are known well enough.
    double decode_ms(int n_rows) const {
        if (n_ == 0) {
            return 10 + n_rows;
        }
        const double mean_x = x_ / n_, mean_y = y_ / n_, guess = mean_y / (10 + mean_x);
        const double spread = xx_ / n_ - mean_x * mean_x, noise = std::max(0.0, yy_ / n_ - mean_y * mean_y);
        const double doubt = noise / (n_ * guess * guess) + 1e-3;
        const double slope = std::max(0.0, (xy_ / n_ - mean_x * mean_y + doubt * guess) / (spread + doubt));
        return std::max(0.1 * mean_y, mean_y + slope * (n_rows - mean_x)) + 1e-6;
    }
};
