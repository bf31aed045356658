// Chooses the drafter of a round and the draft length: the most emitted tokens per ms.
#pragma once

#include <array>
#include <vector>

#include "eagle_policy.h"
#include "eagle_round_times.h"

namespace eagle {

// The share of proposed tokens that are right: a mean over the latest ones, which begins with a guess.
class Acceptance {
  public:
    explicit Acceptance(double guess = 0.6) : rate_(guess) {}  // what trained drafts reach on ordinary texts

    double rate() const { return rate_; }
    void observe(bool is_right);
    void discount();                    // earlier observations are old: they count as OLD tokens at most
    double emitted(int n_draft) const;  // expected tokens of a round

  private:
    static constexpr int FIRST = 3;            // tokens that the first guess counts for
    static constexpr int OLD = 5;              // tokens that earlier observations count for, once they are old
    static constexpr int MEMORY = 40;          // tokens that count later: fewer follow chance
    static constexpr double SURPRISE = 0.002;  // chance of wrong tokens in a row at which the text must have changed

    double rate_;
    int n_ = FIRST;
    double chance_ = 1;  // of the wrong tokens since the last right one
};

class DraftPolicy {
  public:
    explicit DraftPolicy(const eagle_policy_params & params);

    int n_seq() const { return (int) seqs_.size(); }
    void begin(int seq);
    bool wants_offer() const;
    void offer(int seq, const llama_token * ids, int n, int n_match, double ms);
    void choose(eagle_policy_draft * drafts, int n);
    void drafted(int n_seq, int n_tokens, double ms) { times_.drafted(n_seq, n_tokens, ms); }
    void decoded(int n_seq, int n_rows, double ms) { times_.decoded(n_seq, n_rows, ms); }
    void verified(int seq, int n_draft, int n_accepted);
    void text(int seq, const llama_token * ids, int n);

  private:
    struct Sequence {
        Acceptance model;
        std::array<Acceptance, 4> offers{Acceptance(0.6), Acceptance(0.1), Acceptance(0.5), Acceptance(0.8)};
        size_t kind = 0;  // of the last offer: by the length of its match
        std::vector<llama_token> offered;
        int source = EAGLE_SOURCE_NONE;

        Acceptance & offer() { return offers[kind]; }
        const Acceptance & offer() const { return offers[kind]; }
    };

    // For all sequences of a round.
    struct Option {
        int source = EAGLE_SOURCE_NONE;
        int length = 0;
        double emitted = 0, ms = 1;
        double speed() const { return emitted / ms; }
    };

    bool is_fixed_, has_model_;
    std::vector<int> lengths_;
    std::vector<Sequence> seqs_;
    RoundTimes times_;
    RecentTimes offer_times_;
    int n_without_offer_ = 0;              // rounds since an offer was made
    std::vector<std::vector<int>> tries_;  // rounds by sequences and length
    int best_;                             // length of the model's drafts
    int idle_ = 0;                         // rounds since the last probe
    int n_offers_ = 0;                     // rounds with offers of a known length
    int n_probes_ = 0;                     // rounds of the current probe
    bool was_right_ = false;               // all drafted tokens of the last round were accepted
    bool is_longer_ = false;               // the last probe of a neighbour

    void choose_offer(Option & best, const eagle_policy_draft * drafts, int n, int n_max);
    Option longer_offer(const eagle_policy_draft * drafts, int n, int n_max, const Option & offer);
    double offer_decode_ms(int n_seq, int n_rows, bool anew) const;
    bool is_offered(const eagle_policy_draft & draft, int length) const;
    bool takes_offer(const eagle_policy_draft & draft, int n, int length) const;
    void assign(eagle_policy_draft & draft, int n, const Option & option);
    Option option(const eagle_policy_draft * drafts, int n, int source, int length, bool anew = false) const;
    Option best_offer(const eagle_policy_draft * drafts, int n, int n_max, bool anew = false) const;
    Option best_model(const eagle_policy_draft * drafts, int n, int n_max);
    int trial(const eagle_policy_draft * drafts, int n, int n_max, const Option & best);
    int probe(const eagle_policy_draft * drafts, int n, int n_max, const Option & best);
    int neighbour(int length, bool is_longer, int n_max) const;
    bool is_known(int n_seq, int length) const;
};

}  // namespace eagle
