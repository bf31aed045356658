// How long drafts should be: by each sequence's acceptance, and by what rows and drafted tokens cost, measured.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <vector>

// Of the last few times, the lower quartile: what other programs hold up says nothing of a decode.
class eagle_times {
  public:
    void add(double ms) { last_[n_++ % last_.size()] = ms; }
    int count() const { return n_; }
    double typical() const {
        std::array<double, 16> sorted = last_;
        const auto end = sorted.begin() + std::min<size_t>(n_, sorted.size());
        std::sort(sorted.begin(), end);
        return sorted[(end - sorted.begin() - 1) / 4];
    }

  private:
    std::array<double, 16> last_{};
    int n_ = 0;
};

class eagle_pace {
  public:
    eagle_pace(int n_seq, int n_max)
        : n_max_(n_max),
          rates_(n_seq, 0.6),
          seen_(n_seq, 5),
          tries_(n_seq + 1, std::vector<int>(n_max + 1)),
          times_(n_seq + 1) {}

    // To decode and sample so many rows of n_seq sequences took so long.
    void decoded(int n_seq, int n_rows, double ms) { times_[n_seq][n_rows].add(ms); }

    // So many tokens were drafted for each of n_seq sequences, side by side. Behind a prompt, or rounds without a
    // draft, the draft first reads what came meanwhile: that says nothing of a step.
    void drafted(int n_seq, int n_tokens, double ms) {
        if (n_tokens > 0 && !is_behind_) {
            steps_[n_seq].add(ms / n_tokens);
        }
        is_behind_ = n_tokens == 0;
    }

    void accepted(int seq, int n_drafted, int n_accepted) {
        for (int i = 0; i < std::min(n_drafted, n_accepted + 1); i++) {
            seen_[seq] = std::min(seen_[seq] + 1, 25);
            rates_[seq] += ((i < n_accepted ? 1.0 : 0.0) - rates_[seq]) / seen_[seq];
        }
    }

    // Another text, which may be easier.
    void began(int) {
        wait_ = 0;
        is_behind_ = true;
    }

    // Tokens to draft for each of these sequences, which are decoded together: the most tokens per time. One length
    // for all: llama.cpp decodes sequences with different numbers of rows in parts, and each part reads all weights.
    int length(const std::vector<int> & seqs) {
        const std::vector<double> rates = rates_of(seqs);
        const int chosen = choose(rates);
        tries_[rates.size()][chosen]++;
        return chosen;
    }

    // The same for up to n_max tokens of a sequence that cost nothing to draft, each right with that probability, where
    // `length` are drafted for each of `seqs`; 0 where the sequence's own drafts promise more.
    int free_length(int seq, double rate, int n_max, const std::vector<int> & seqs, int length) const {
        if (seqs.size() > 1) {
            return n_max >= length && rate >= rates_[seq] ? length : 0;
        }
        const std::vector<double> own_rate = {rates_[seq]}, free_rate = {rate};
        const double step_ms = step_ms_of(1);
        const int own = longest_worth(own_rate, n_max_, step_ms), best = longest_worth(free_rate, n_max, 0);
        return speed(free_rate, best, 0) >= speed(own_rate, own, step_ms) ? best : 0;
    }

  private:
    static constexpr int ENOUGH = 3;                           // decodes of so many rows tell what they cost
    static constexpr double HOPE = 0.9;                        // of the best speed, expected of a length to be tried
    static constexpr int FIRST_WAIT = 24, LONGEST_WAIT = 384;  // rounds, the first for each sequence

    int n_max_;
    std::vector<double> rates_;                      // per sequence: share of drafted tokens that are accepted
    std::vector<int> seen_;                          // drafted tokens that a rate is the mean of
    std::vector<std::vector<int>> tries_;            // rounds by number of sequences and length
    std::vector<std::map<int, eagle_times>> times_;  // of decodes, by sequences (each has a state to read) and rows
    std::map<int, eagle_times> steps_;               // of a drafted token for each, by sequences
    int best_ = 0, idle_ = 0, wait_ = 0;             // the last choice, rounds since another was tried, and until it is
    bool longer_ = true, is_again_ = false;          // which one is tried next, and whether it will be once more
    bool is_behind_ = true;                          // the draft, since the last round had none

    // Costs are lines in theory and have steps in practice, so that each length is judged by its own times: from none
    // on, the next longer one is tried as long as it promises much. Later a neighbour of the best is tried now and
    // then, ever more seldom.
    int choose(const std::vector<double> & rates) {
        int n_known = 0;
        while (n_known <= n_max_ && is_known((int) rates.size(), n_known)) {
            n_known++;
        }
        if (n_known == 0) {
            return 0;
        }
        const double step_ms = step_ms_of((int) rates.size());
        const int best = longest_worth(rates, n_known - 1, step_ms);
        if (n_known <= n_max_ && best == n_known - 1 &&
            speed(rates, n_known, step_ms) > HOPE * speed(rates, best, step_ms)) {
            return n_known;
        }
        const int first_wait = FIRST_WAIT * (int) rates.size();  // one text of many changes little
        wait_ = best == best_ ? std::max(wait_, first_wait) : first_wait;
        best_ = best;
        if (++idle_ < wait_) {
            return best;
        }
        is_again_ = best == 0 && !is_again_;
        if (is_again_) {
            return 1;  // as in the next round, when the draft is no longer behind
        }
        idle_ = 0;
        wait_ = std::min(2 * wait_, LONGEST_WAIT);
        longer_ = best == 0 || (best < n_max_ && !longer_);
        return longer_ ? best + 1 : best - 1;
    }

    // Drafts may come out shorter than asked for, and say nothing then.
    bool is_known(int n_seq, int length) const {
        const auto found = times_[n_seq].find(n_seq * (length + 1));
        return (found != times_[n_seq].end() && found->second.count() >= ENOUGH) || tries_[n_seq][length] >= 2 * ENOUGH;
    }

    std::vector<double> rates_of(const std::vector<int> & seqs) const {
        std::vector<double> rates;
        for (int seq : seqs) {
            rates.push_back(rates_[seq]);
        }
        return rates;
    }

    // A draft must promise more than trying and noise lose. With several sequences, drafts bring some to their end
    // before others, and rounds of those that are left cost nearly as much.
    int longest_worth(const std::vector<double> & rates, int n_max, double step_ms) const {
        const double worth = 1.02 + 0.01 * (double) rates.size();
        int best = 0;
        for (int k = 1; k <= n_max; k++) {
            best = speed(rates, k, step_ms) > (best == 0 ? worth : 1) * speed(rates, best, step_ms) ? k : best;
        }
        return best;
    }

    // Emitted tokens per ms of a round in which k are drafted for each of the sequences with these rates.
    double speed(const std::vector<double> & rates, int k, double step_ms) const {
        const int n = (int) rates.size();
        double emitted = 0;
        for (double rate : rates) {
            const double r = std::min(rate, 0.99);
            emitted += (1 - std::pow(r, k + 1)) / (1 - r);
        }
        return emitted / (at(times_[n], n * (k + 1), 10) + k * step_ms);
    }

    // The draft's weights are read once for all sequences: one more costs a twentieth of the first.
    double step_ms_of(int n_seq) const { return steps_.empty() ? 0 : at(steps_, n_seq, 20); }

    // Measured, or between the nearest numbers that were; beyond them one more costs 1 / first of the first.
    static double at(const std::map<int, eagle_times> & times, int n, double first) {
        const auto above = times.lower_bound(n);
        if (above != times.end() && (above->first == n || above == times.begin())) {
            return above->second.typical() * (first + n) / (first + above->first);
        }
        if (times.empty()) {
            return first + n;
        }
        const auto below = std::prev(above);
        const double least = below->second.typical();
        if (above == times.end()) {
            return least * (first + n) / (first + below->first);
        }
        const double part = (double) (n - below->first) / (above->first - below->first);
        return least + part * (above->second.typical() - least);
    }
};
