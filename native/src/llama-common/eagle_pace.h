// How long drafts should be: by each sequence's acceptance, and by what rows and drafted tokens cost, measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

class eagle_pace {
  public:
    eagle_pace(int n_seq, int n_max) : n_max_(n_max), rates_(n_seq, 0.6), seen_(n_seq, 5) {}

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
    void began(int) { wait_ = FIRST_WAIT; }

    // Tokens to draft for each of these sequences, which are decoded together: the most tokens per time. One length
    // for all: llama.cpp decodes sequences with different numbers of rows in parts, and each part reads all weights.
    // Where none pays, one is tried now and then, ever more seldom. So many sequences together for the first time draft
    // nothing: beside that is seen what drafts cost.
    int length(const std::vector<int> & seqs) {
        is_known_.resize(std::max(is_known_.size(), seqs.size() + 1));
        if (!is_known_[seqs.size()]) {
            is_known_[seqs.size()] = true;
            return 0;
        }
        const int best = longest_worth(rates_of(seqs), n_max_, token_ms_);
        if (best > 0) {
            wait_ = FIRST_WAIT;
            idle_ = 0;
        } else if (++idle_ >= wait_) {
            wait_ = std::min(2 * wait_, LONGEST_WAIT);
            idle_ = 0;
            return 1;
        }
        return best;
    }

    // The same for up to n_max tokens of a sequence that cost nothing to draft, each right with that probability, where
    // `length` are drafted for each of `seqs`; 0 where the sequence's own drafts promise more.
    int free_length(int seq, double rate, int n_max, const std::vector<int> & seqs, int length) const {
        if (seqs.size() > 1) {
            return n_max >= length && rate >= rates_[seq] ? length : 0;
        }
        const std::vector<double> own_rate = {rates_[seq]}, free_rate = {rate};
        const int own = longest_worth(own_rate, n_max_, token_ms_), best = longest_worth(free_rate, n_max, 0);
        return speed(free_rate, best, 0) >= speed(own_rate, own, token_ms_) ? best : 0;
    }

  private:
    static constexpr double MEMORY = 0.98, FEW = 8, MOST = 2;
    static constexpr int FIRST_WAIT = 24, LONGEST_WAIT = 384;  // rounds

    int n_max_;
    std::vector<double> rates_;         // per sequence: share of drafted tokens that are accepted
    std::vector<int> seen_;             // drafted tokens that a rate is the mean of
    int idle_ = 0, wait_ = FIRST_WAIT;  // rounds since the last draft, and until the next try
    std::vector<bool> is_known_;        // by number of sequences: whether they have been decoded without drafts
    double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;  // of the line through rows and times
    double token_ms_ = 0;

    std::vector<double> rates_of(const std::vector<int> & seqs) const {
        std::vector<double> rates;
        for (int seq : seqs) {
            rates.push_back(rates_[seq]);
        }
        return rates;
    }

    int longest_worth(const std::vector<double> & rates, int n_max, double token_ms) const {
        int best = 0;
        for (int k = 1; k <= n_max; k++) {
            best = speed(rates, k, token_ms) > speed(rates, best, token_ms) ? k : best;
        }
        return best;
    }

    // Emitted tokens per ms of a round in which k are drafted for each of the sequences with these rates.
    double speed(const std::vector<double> & rates, int k, double token_ms) const {
        const int n = (int) rates.size();
        double emitted = 0;
        for (double rate : rates) {
            const double r = std::min(rate, 0.99);
            emitted += (1 - std::pow(r, k + 1)) / (1 - r);
        }
        return emitted / (decode_ms(n * (k + 1)) + n * k * token_ms);
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
