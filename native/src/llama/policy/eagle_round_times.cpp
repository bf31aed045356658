#include "eagle_round_times.h"

#include <algorithm>
#include <utility>

namespace eagle {

namespace {

constexpr double ROW = 0.08;  // of a plain decode: computing a further row, without its weights (measured 0.06 to 0.1)
constexpr double TOKEN = 0.07;  // of a plain decode: a drafted token, unless the files tell (EAGLE-3, MTP: 0.04 to 0.2)
constexpr double SEQUENCES = 20;  // a draft's weights are read once for all: this number doubles a token's time

}  // namespace

double RecentTimes::typical() const {
    if (n_ == 0) {
        return 0;
    }
    std::array<double, 8> sorted = last_;
    const auto end = sorted.begin() + std::min<size_t>(n_, sorted.size());
    std::sort(sorted.begin(), end);
    return sorted[(end - sorted.begin() - 1) / 4];
}

int TimeCurve::count(int size) const {
    const auto found = times_.find(size);
    return found == times_.end() ? 0 : found->second.count();
}

RoundTimes::RoundTimes(int n_seq, std::vector<float> row_cost, double token_cost)
    : row_cost_(std::move(row_cost)),
      token_cost_(token_cost > 0 ? token_cost : TOKEN),
      decodes_(n_seq + 1),
      drafts_(n_seq + 1) {}

void RoundTimes::drafted(int n_seq, int n_tokens, double ms) {
    if (n_tokens > 0 && !is_behind_) {
        drafts_[n_seq].add(n_tokens, ms);
    }
    is_behind_ = n_tokens == 0;
}

double RoundTimes::decode_ms(int n_seq, int n_rows) const {
    return nearest(decodes_, n_seq).at(n_rows, [&](int n) { return cost_of(n); });
}

double RoundTimes::expected_ms(int n_seq, int n_rows) const {
    return decode_ms(n_seq, n_seq) / cost_of(n_seq) * cost_of(n_rows);
}

double RoundTimes::draft_ms(int n_seq, int n_tokens) const {
    const double plain_ms = decode_ms(n_seq, n_seq) / cost_of(n_seq);
    const double token_ms = plain_ms * token_cost_ * (SEQUENCES + n_seq) / (SEQUENCES + 1);
    return nearest(drafts_, n_seq).at(n_tokens, [&](int n) { return token_ms * n; });
}

// Those of the nearest number of sequences, if there are none of this one.
const TimeCurve & RoundTimes::nearest(const std::vector<TimeCurve> & curves, int n_seq) {
    for (int off = 0; off < (int) curves.size(); off++) {
        for (const int n : {n_seq - off, n_seq + off}) {
            if (n >= 0 && n < (int) curves.size() && !curves[n].empty()) {
                return curves[n];
            }
        }
    }
    return curves[n_seq];
}

double RoundTimes::cost_of(int n_rows) const {
    const double weights = row_cost_.empty() ? 1 : row_cost_[std::min<size_t>(n_rows, row_cost_.size()) - 1];
    return weights + ROW * (n_rows - 1);
}

}  // namespace eagle
