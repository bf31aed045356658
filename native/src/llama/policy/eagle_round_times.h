// Times of rounds: measured where they are known, else by the weights that a round reads.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

namespace eagle {

constexpr int ENOUGH = 3;  // measurements of a size tell its time: the quickest of three is rarely disturbed
// The lower quartile of the latest measurements: rounds that another program slowed say nothing of their length.
class RecentTimes {
  public:
    void add(double ms) { last_[n_++ % last_.size()] = ms; }
    int count() const { return n_; }
    double typical() const;

  private:
    std::array<double, 8> last_{};
    int n_ = 0;
};

// Times by a size. `shape` gives their ratios before they are measured.
class TimeCurve {
  public:
    void add(int size, double ms) { times_[size].add(ms); }
    bool empty() const { return times_.empty(); }
    int count(int size) const;

    // The measured time or, between and beyond measured sizes, `shape` times what they take of it. Other programs only
    // add time: no size takes longer than a larger one, nor longer for each unit than a smaller one.
    template <typename Shape>
    double at(int size, Shape shape) const {
        double ms = shape(size) * ratio(size, shape);
        for (auto larger = times_.upper_bound(size); larger != times_.end(); ++larger) {
            ms = std::min(ms, larger->second.typical());
        }
        for (auto smaller = times_.begin(); smaller != times_.end() && smaller->first < size; ++smaller) {
            ms = std::min(ms, smaller->second.typical() * size / smaller->first);
        }
        return ms;
    }

    // Cost of a further row, as a share of the time per unit of `weights`: fit of plain * (weights + cost * (size - 1))
    // to the sizes that are measured. Nothing for fewer than two of them.
    template <typename Weights>
    std::optional<double> row_cost(Weights weights) const {
        double ww = 0, wn = 0, nn = 0, wt = 0, nt = 0;
        for (const auto & [size, times] : times_) {
            if (times.count() < ENOUGH) {
                continue;  // the first decode of a size includes making its graph
            }
            const double w = weights(size), n = size - 1, t = times.typical();
            ww += w * w;
            wn += w * n;
            nn += n * n;
            wt += w * t;
            nt += n * t;
        }
        const double det = ww * nn - wn * wn;  // 0 for one size
        const double plain = wt * nn - nt * wn, row = nt * ww - wt * wn;
        if (det < 1e-9) {
            return std::nullopt;
        }
        return row >= plain ? 1.0 : std::max(row / plain, 0.0);  // a steep line has no plain time of its own
    }

  private:
    std::map<int, RecentTimes> times_;

    template <typename Shape>
    double ratio(int size, Shape shape) const {
        if (times_.empty()) {
            return 1;
        }
        const auto of = [&](auto it) { return it->second.typical() / shape(it->first); };
        const auto above = times_.lower_bound(size);
        if (above == times_.begin() || (above != times_.end() && above->first == size)) {
            return of(above);
        }
        const auto below = std::prev(above);
        if (above == times_.end()) {
            return of(below);
        }
        const double part = (double) (size - below->first) / (above->first - below->first);
        return of(below) + part * (of(above) - of(below));
    }
};

// Times of decodes by sequences and rows, and of the model's drafts by sequences and tokens.
class RoundTimes {
  public:
    // first_row: cost of a further row, until several numbers of rows are measured.
    RoundTimes(int n_seq, std::vector<float> row_cost, double token_cost, double draft_cost, double first_row);

    void decoded(int n_seq, int n_rows, double ms);

    // The first draft after rounds without one also reads what came meanwhile: that says nothing of a token's time.
    void drafted(int n_seq, int n_tokens, double ms);
    void fell_behind() { is_behind_ = true; }

    double decode_ms(int n_seq, int n_rows) const;
    double expected_ms(int n_seq, int n_rows) const;  // of a decode: by that of one row a sequence
    double draft_ms(int n_seq, int n_tokens) const;
    int n_decodes(int n_seq, int n_rows) const { return decodes_[n_seq].count(n_rows); }
    bool knows_drafts(int n_seq) const { return !drafts_[n_seq].empty(); }

  private:
    std::vector<float> row_cost_;
    double row_;  // of a plain decode: computing a further row, without its weights
    double token_cost_, draft_cost_;
    std::vector<TimeCurve> decodes_, drafts_;  // by sequences: each has a state to read
    bool is_behind_ = true;

    double weights_of(int n_rows) const;
    double cost_of(int n_rows) const;
    static const TimeCurve & nearest(const std::vector<TimeCurve> & curves, int n_seq);
};

}  // namespace eagle
