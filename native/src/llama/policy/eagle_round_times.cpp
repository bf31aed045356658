#include "eagle_round_times.h"

#include <algorithm>
#include <utility>

namespace eagle {

namespace {

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

RoundTimes::RoundTimes(int n_seq, std::vector<float> row_cost, double token_cost, double draft_cost, double first_row)
    : row_cost_(std::move(row_cost)),
      row_(first_row),
      token_cost_(token_cost > 0 ? token_cost : TOKEN),
      draft_cost_(draft_cost),
      decodes_(n_seq + 1),
      drafts_(n_seq + 1) {}

void RoundTimes::drafted(int n_seq, int n_tokens, double ms) {
    if (n_tokens > 0 && !is_behind_) {
        drafts_[n_seq].add(n_tokens, ms);
    }
    is_behind_ = n_tokens == 0;
}

void RoundTimes::decoded(int n_seq, int n_rows, double ms) {
    decodes_[n_seq].add(n_rows, ms);
    if (decodes_.size() == 2) {  // several sequences have too many sizes, each measured too rarely
        row_ = decodes_[1].row_cost([this](int n) { return weights_of(n); }).value_or(row_);
    }
}

double RoundTimes::decode_ms(int n_seq, int n_rows) const {
    return nearest(decodes_, n_seq).at(n_rows, [&](int n) { return cost_of(n); });
}

double RoundTimes::expected_ms(int n_seq, int n_rows) const {
    return decode_ms(n_seq, n_seq) / cost_of(n_seq) * cost_of(n_rows);
}

double RoundTimes::draft_ms(int n_seq, int n_tokens) const {
    const double plain_ms = decode_ms(n_seq, n_seq) / cost_of(n_seq);
    const double ms = plain_ms * (SEQUENCES + n_seq) / (SEQUENCES + 1);
    return nearest(drafts_, n_seq).at(n_tokens, [&](int n) { return ms * (draft_cost_ + token_cost_ * n); });
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

double RoundTimes::weights_of(int n_rows) const {
    return row_cost_.empty() ? 1 : row_cost_[std::min<size_t>(n_rows, row_cost_.size()) - 1];
}

double RoundTimes::cost_of(int n_rows) const {
    return weights_of(n_rows) + row_ * (n_rows - 1);
}

}  // namespace eagle
