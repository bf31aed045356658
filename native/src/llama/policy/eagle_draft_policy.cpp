#include "eagle_draft_policy.h"

#include <algorithm>
#include <cmath>

namespace eagle {

namespace {

constexpr int LENGTHS[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};  // few: each has graphs of its own
constexpr double GAIN = 1.01;      // a length is left for one that is faster by this: smaller gains are mostly noise
constexpr double PROMISING = 0.9;  // of the best speed: an unmeasured length is probed if it may reach that
constexpr int AGAIN = 16;          // rounds with offers until one of the next length is tried again
constexpr double PROBE_SHARE = 0.005;  // of the time goes into probes: less than can be noticed
constexpr int MATCHES[] = {4, 6};      // tokens of a match: offers after shorter ones are wrong more often
// Of a plain decode: a further row, until a single sequence has measured several numbers of rows. Where memory is slow,
// rows are nearly free: so long drafts of a single sequence are tried at first. Several sequences have more rows, which
// may be expensive, and offers are compared with plain decoding, which is not measured unless it counts as faster.
constexpr double FIRST_ROW = 0.08, FIRST_ROW_SINGLE = 0.04;
constexpr double SWITCH = 0.15;  // of a round: what another length and the way back cost (new graphs)

}  // namespace

void Acceptance::observe(bool is_right) {
    chance_ = is_right ? 1 : chance_ * (1 - rate_);
    if (chance_ < SURPRISE) {
        discount();
    }
    n_ = std::min(n_ + 1, MEMORY);
    rate_ += ((is_right ? 1.0 : 0.0) - rate_) / n_;
}

void Acceptance::discount() {
    n_ = std::min(n_, OLD);
    chance_ = 1;
}

double Acceptance::emitted(int n_draft) const {
    const double r = std::min(rate_, 0.99);
    return (1 - std::pow(r, n_draft + 1)) / (1 - r);
}

DraftPolicy::DraftPolicy(const eagle_policy_params & params)
    : is_fixed_(params.n_draft > 0),
      has_model_(params.has_model),
      seqs_(params.n_seq),
      times_(params.n_seq, {params.row_cost, params.row_cost + (params.row_cost ? params.n_rows : 0)},
             params.token_cost, params.draft_cost,
             params.has_model && params.n_seq == 1 ? FIRST_ROW_SINGLE : FIRST_ROW),
      tries_(params.n_seq + 1, std::vector<int>(params.n_draft_max + 1)),
      best_(params.n_draft) {
    if (is_fixed_) {
        lengths_ = {params.n_draft};
        return;
    }
    std::copy_if(std::begin(LENGTHS), std::end(LENGTHS), std::back_inserter(lengths_),
                 [&](int n) { return n <= params.n_draft_max; });
}

void DraftPolicy::begin(int seq) {
    seqs_[seq].offered.clear();
    seqs_[seq].model.discount();
    for (Acceptance & offer : seqs_[seq].offers) {
        offer.discount();
    }
    times_.fell_behind();
}

bool DraftPolicy::wants_offer() const {
    const bool is_used =
        std::any_of(seqs_.begin(), seqs_.end(), [](const auto & s) { return s.source == EAGLE_SOURCE_OFFER; });
    if (is_used || offer_times_.count() == 0) {
        return true;
    }
    return n_without_offer_ * PROBE_SHARE * times_.decode_ms(1, 1) >= offer_times_.typical();
}

void DraftPolicy::offer(int seq, const llama_token * ids, int n, int n_match, double ms) {
    seqs_[seq].offered.assign(ids, ids + n);
    seqs_[seq].kind = n_match <= 0 ? 0 : n_match < MATCHES[0] ? 1 : n_match < MATCHES[1] ? 2 : 3;
    offer_times_.add(ms);
    n_without_offer_ = 0;
}

void DraftPolicy::text(int seq, const llama_token * ids, int n) {
    Sequence & s = seqs_[seq];
    bool is_right = true;
    for (int i = 0; i < n && i < (int) s.offered.size() && is_right; i++) {
        is_right = s.offered[i] == ids[i];
        s.offer().observe(is_right);
    }
    s.offered.clear();
}

void DraftPolicy::verified(int seq, int n_draft, int n_accepted) {
    if (seqs_[seq].source == EAGLE_SOURCE_MODEL) {
        for (int i = 0; i < std::min(n_draft, n_accepted + 1); i++) {
            seqs_[seq].model.observe(i < n_accepted);
        }
        was_right_ = was_right_ && n_accepted == n_draft;
    }
}

void DraftPolicy::choose(eagle_policy_draft * drafts, int n) {
    int n_max = 0;
    for (int i = 0; i < n; i++) {
        n_max = std::max(n_max, drafts[i].n_max);
    }
    Option best = best_model(drafts, n, n_max);
    choose_offer(best, drafts, n, n_max);
    const int other = has_model_ && !is_fixed_ ? trial(drafts, n, n_max, best) : -1;
    if (other >= 0) {
        best = option(drafts, n, other > 0 ? EAGLE_SOURCE_MODEL : EAGLE_SOURCE_NONE, other);
    }
    tries_[n][best.length]++;
    was_right_ = best.source == EAGLE_SOURCE_MODEL;
    n_without_offer_++;
    for (int i = 0; i < n; i++) {
        assign(drafts[i], n, best);
    }
}

// Takes the offer in place of `best` where it is faster; a fixed length without a model takes every offer.
void DraftPolicy::choose_offer(Option & best, const eagle_policy_draft * drafts, int n, int n_max) {
    const Option offer = best_offer(drafts, n, n_max);
    const bool is_only = is_fixed_ && !has_model_ && offer.length > 0;
    if (is_only || (offer.speed() > best.speed() && (best.length == 0 || times_.knows_drafts(n)))) {
        best = longer_offer(drafts, n, n_max, offer);
        return;
    }
    if (has_model_) {
        return;  // its probes keep the times young
    }
    const Option hoped = best_offer(drafts, n, n_max, true);
    if (hoped.speed() > best.speed()) {
        const Option known = option(drafts, n, EAGLE_SOURCE_OFFER, hoped.length);
        const double loss = known.ms / best.ms * std::max(1 - known.speed() / best.speed(), 0.0) + SWITCH;
        if (++idle_ >= loss / PROBE_SHARE) {
            idle_ = 0;
            best = hoped;
        }
    }
}

// Now and then, and until its time is known, the next longer offer in place of `offer`: times of a few sizes, measured
// while another program ran, would else keep offers short.
DraftPolicy::Option DraftPolicy::longer_offer(const eagle_policy_draft * drafts, int n, int n_max,
                                              const Option & offer) {
    const int length = neighbour(offer.length, true, n_max);
    const bool is_offered = std::any_of(drafts, drafts + n, [&](const auto & d) { return takes_offer(d, n, length); });
    if (is_fixed_ || !is_offered || !is_known(n, offer.length)) {
        return offer;
    }
    Option longer = option(drafts, n, EAGLE_SOURCE_OFFER, length);
    if (!is_known(n, length)) {
        longer.ms = offer.ms + times_.decode_ms(n, n) * FIRST_ROW_SINGLE * n * (length - offer.length);
        return longer.speed() > offer.speed() ? longer : offer;
    }
    const bool is_due = ++n_offers_ % AGAIN < 2;  // twice: one time among slow ones changes no quartile
    return is_due && longer.speed() > PROMISING * offer.speed() ? longer : offer;
}

// The first decodes of a size take longer: their graphs and buffers are made. Until ENOUGH are measured, and for a
// probe of old times (`anew`), the shape of the times counts where it gives less.
double DraftPolicy::offer_decode_ms(int n_seq, int n_rows, bool anew) const {
    const double ms = times_.decode_ms(n_seq, n_rows);
    const bool is_known = times_.n_decodes(n_seq, n_rows) >= ENOUGH && !anew;
    return is_known ? ms : std::min(ms, times_.expected_ms(n_seq, n_rows));
}

void DraftPolicy::assign(eagle_policy_draft & draft, int n, const Option & option) {
    Sequence & s = seqs_[draft.seq];
    draft.n_draft = std::min(option.length, draft.n_max);
    draft.source = has_model_ ? option.source : EAGLE_SOURCE_NONE;
    if (option.source == EAGLE_SOURCE_OFFER) {
        const bool offers = takes_offer(draft, n, option.length);
        draft.source = offers ? EAGLE_SOURCE_OFFER : has_model_ ? EAGLE_SOURCE_MODEL : EAGLE_SOURCE_NONE;
        draft.n_draft = offers ? std::min<int>(draft.n_draft, (int) s.offered.size()) : draft.n_draft;
    }
    if (draft.n_draft == 0 || draft.source == EAGLE_SOURCE_NONE) {
        draft.source = EAGLE_SOURCE_NONE;
        draft.n_draft = 0;
    }
    s.source = draft.source;
}

bool DraftPolicy::is_offered(const eagle_policy_draft & draft, int length) const {
    const int n_offered = std::min<int>((int) seqs_[draft.seq].offered.size(), draft.n_max);
    return n_offered > 0 && (is_fixed_ || n_offered >= std::min(length, draft.n_max));
}

// One of several takes its offer if it is better than the model's draft of the same length; a single one's own lengths
// are compared.
bool DraftPolicy::takes_offer(const eagle_policy_draft & draft, int n, int length) const {
    const Sequence & s = seqs_[draft.seq];
    return is_offered(draft, length) && (n == 1 || !has_model_ || s.offer().rate() >= s.model.rate());
}

DraftPolicy::Option DraftPolicy::option(const eagle_policy_draft * drafts, int n, int source, int length,
                                        bool anew) const {
    Option found{source, length, 0, 0};
    int n_rows = n;
    bool is_drafted = false;
    for (int i = 0; i < n; i++) {
        const Sequence & s = seqs_[drafts[i].seq];
        const bool offers = source == EAGLE_SOURCE_OFFER && takes_offer(drafts[i], n, length);
        const int n_offered = offers ? (int) s.offered.size() : has_model_ ? length : 0;
        const int n_draft = std::min({length, n_offered, drafts[i].n_max});
        found.emitted += (offers ? s.offer() : s.model).emitted(n_draft);
        n_rows += n_draft;
        is_drafted = is_drafted || (!offers && n_draft > 0);
    }
    const bool is_offer = source == EAGLE_SOURCE_OFFER;
    found.ms = (is_offer ? offer_decode_ms(n, n_rows, anew) : times_.decode_ms(n, n_rows)) +
               (is_drafted ? times_.draft_ms(n, length) : 0) + (is_offer ? offer_times_.typical() : 0);
    return found;
}

DraftPolicy::Option DraftPolicy::best_offer(const eagle_policy_draft * drafts, int n, int n_max, bool anew) const {
    Option best{EAGLE_SOURCE_OFFER, 0, 0, 1};
    for (const int length : lengths_) {
        const bool is_any = std::any_of(drafts, drafts + n, [&](const auto & d) { return takes_offer(d, n, length); });
        if (length > 0 && (length <= n_max || is_fixed_) && is_any) {
            const Option found = option(drafts, n, EAGLE_SOURCE_OFFER, length, anew);
            best = found.speed() > best.speed() ? found : best;
        }
    }
    return best;
}

// The best of the model's lengths and none.
DraftPolicy::Option DraftPolicy::best_model(const eagle_policy_draft * drafts, int n, int n_max) {
    const int current = has_model_ ? std::min(best_, n_max) : 0;
    const auto at = [&](int length) {
        return option(drafts, n, length > 0 ? EAGLE_SOURCE_MODEL : EAGLE_SOURCE_NONE, length);
    };
    Option best = at(current);
    if (!has_model_ || is_fixed_) {
        return best;
    }
    for (const int length : lengths_) {
        // Drafts bring some sequences to their end before others, and the rounds of the others cost nearly as much.
        const double gain = current == 0 ? GAIN + 0.01 * (n - 1) : GAIN;
        const Option found = length <= n_max ? at(length) : best;
        if (found.speed() > gain * at(current).speed() && found.speed() > best.speed()) {
            best = found;
        }
    }
    if (best.length != current) {
        best_ = best.length;
    }
    return best;
}

// A length for this round that is not known to be the best; -1: none.
int DraftPolicy::trial(const eagle_policy_draft * drafts, int n, int n_max, const Option & best) {
    const bool is_drafting = best.source == EAGLE_SOURCE_MODEL;
    if (is_drafting && is_known(n, best.length)) {
        for (const bool is_longer : {true, false}) {
            const int length = neighbour(best.length, is_longer, n_max);
            if (!is_known(n, length) &&
                option(drafts, n, EAGLE_SOURCE_MODEL, length).speed() > PROMISING * best.speed()) {
                return length;
            }
        }
    }
    return probe(drafts, n, n_max, best);
}

// Now and then a neighbour of the best length or, while the model does not draft, a draft of it: twice, because it
// first reads what came meanwhile, and as long as it is right.
int DraftPolicy::probe(const eagle_policy_draft * drafts, int n, int n_max, const Option & best) {
    const bool is_drafting = best.source == EAGLE_SOURCE_MODEL;
    const int nth = std::min<int>(std::max(n_probes_, 1), (int) lengths_.size() - 1);
    int length = best_ > 0 ? std::min(best_, n_max) : std::min(lengths_[nth], n_max);
    if (is_drafting) {
        length = neighbour(best.length, !is_longer_, n_max);
    }
    const bool continues = !is_drafting && (n_probes_ == 1 || (n_probes_ > 1 && was_right_));
    const Option found = option(drafts, n, length > 0 ? EAGLE_SOURCE_MODEL : EAGLE_SOURCE_NONE, length);
    const double loss = found.ms / best.ms * std::max(1 - found.speed() / best.speed(), 0.0) + SWITCH;
    if (!continues && ++idle_ < loss / PROBE_SHARE) {
        n_probes_ = 0;
        return -1;
    }
    idle_ = 0;
    is_longer_ = !is_longer_;
    n_probes_ = is_drafting ? 0 : n_probes_ + 1;
    if (n_probes_ == 1) {
        for (int i = 0; i < n; i++) {
            seqs_[drafts[i].seq].model.discount();
        }
    }
    return length;
}

int DraftPolicy::neighbour(int length, bool is_longer, int n_max) const {
    const auto found = std::find(lengths_.begin(), lengths_.end(), length);
    if (found == lengths_.end()) {
        return length;
    }
    if (is_longer && std::next(found) != lengths_.end() && *std::next(found) <= n_max) {
        return *std::next(found);
    }
    return found == lengths_.begin() ? length : *std::prev(found);
}

// Drafts may come out shorter than chosen.
bool DraftPolicy::is_known(int n_seq, int length) const {
    return times_.n_decodes(n_seq, n_seq * (length + 1)) >= ENOUGH || tries_[n_seq][length] >= 2 * ENOUGH;
}

}  // namespace eagle
