// The draft policy: long drafts where they are accepted and rows are cheap, short where many share the batch, none
// where they are not faster, probed now and then; and the offer in place of the model's draft where it is faster.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "eagle_policy.h"

namespace {

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

struct Policy {
    eagle_policy * impl = nullptr;

    explicit Policy(int n_seq = 8, bool has_model = true, int n_draft = 0) {
        eagle_policy_params params = eagle_policy_default_params();
        params.n_seq = n_seq;
        params.n_draft_max = 8;
        params.n_draft = n_draft;
        params.has_model = has_model;
        require(eagle_policy_new(&params, &impl) == EAGLE_OK, "a policy");
    }
    Policy(const Policy &) = delete;
    ~Policy() { eagle_policy_free(impl); }

    std::vector<eagle_policy_draft> choose(const std::vector<int> & seqs, int n_max = 8) const {
        std::vector<eagle_policy_draft> drafts;
        for (const int seq : seqs) {
            drafts.push_back({seq, n_max, -1, -1});
        }
        require(eagle_policy_choose(impl, drafts.data(), (int32_t) drafts.size()) == EAGLE_OK, "a choice");
        return drafts;
    }
};

std::vector<int> first(int n) {
    std::vector<int> seqs(n);
    std::iota(seqs.begin(), seqs.end(), 0);
    return seqs;
}

// Tokens that follow: 0, 1, 2, ... as far as they are right.
std::vector<llama_token> proposal(int n, int n_right, llama_token wrong = -1) {
    std::vector<llama_token> ids(n, wrong);
    std::iota(ids.begin(), ids.begin() + std::min(n, n_right), 0);
    return ids;
}

struct World {
    double model_rate = 0.7, offer_rate = 0;
    int n_offered = 0, n_match = 0;
    bool is_first_slow = false;  // the first decode of a number of rows takes ten times as long
    double dear_ms = 0;          // of each row above nine
    double held_up = 0;          // share of rounds that the policy sees take two to eight times as long
    int n_draft = -1;            // of all; -1: as the policy has it
};

struct Played {
    double speed = 0;                               // tokens per ms
    std::vector<int> rounds = std::vector<int>(3);  // by source of the first sequence
};

double decode_ms(int n_seq, int n_rows, double dear_ms) {
    return 30 + 2 * n_seq + 1.5 * n_rows + dear_ms * std::max(0, n_rows - 9);  // each sequence has a state to read
}

class Game {
  public:
    Game(Policy & policy, int n, const World & world) : policy_(policy), seqs_(first(n)), world_(world) {}

    Played play(int n_rounds) {
        Played played;
        double ms = 0, n_tokens = 0;
        for (int round = 0; round < n_rounds; round++) {
            n_tokens += round_of(played);
            ms += ms_;
        }
        played.speed = n_tokens / ms;
        return played;
    }

  private:
    Policy & policy_;
    std::vector<int> seqs_;
    World world_;
    std::mt19937 random_{1}, other_{2};
    int n_behind_ = 40;  // tokens of each that the model has not read: here the prompts
    double ms_ = 0;
    std::set<int> seen_rows_;

    int right(double rate, int n_max) {
        std::bernoulli_distribution is_right(rate);
        int n = 0;
        while (n < n_max && is_right(random_)) {
            n++;
        }
        return n;
    }

    int round_of(Played & played) {
        const int n = (int) seqs_.size();
        std::vector<int> offered;
        for (const int seq : seqs_) {
            offered.push_back(right(world_.offer_rate, world_.n_offered));
            const auto ids = proposal(world_.n_offered, offered.back());
            eagle_policy_offer(policy_.impl, seq, ids.data(), (int32_t) ids.size(), world_.n_match, 0.01);
        }
        auto drafts = policy_.choose(seqs_);
        played.rounds[drafts[0].source]++;
        int n_rows = n, n_model = 0, longest = 0, n_tokens = n;
        for (int i = 0; i < n; i++) {
            auto & draft = drafts[i];
            if (world_.n_draft >= 0) {
                draft = {draft.seq, 8, world_.n_draft ? EAGLE_SOURCE_MODEL : EAGLE_SOURCE_NONE, world_.n_draft};
            }
            const bool offers = draft.source == EAGLE_SOURCE_OFFER;
            const int n_right = offers ? std::min(offered[i], draft.n_draft) : right(world_.model_rate, draft.n_draft);
            eagle_policy_verified(policy_.impl, draft.seq, draft.n_draft, n_right);
            const auto text = proposal(n_right + 1, offered[i], -2);
            eagle_policy_text(policy_.impl, draft.seq, text.data(), (int32_t) text.size());
            n_tokens += n_right;
            n_rows += draft.n_draft;
            if (draft.source == EAGLE_SOURCE_MODEL) {
                n_model++;
                longest = std::max(longest, draft.n_draft);
            }
        }
        count(n, n_rows, n_model, longest);
        return n_tokens;
    }

    void count(int n, int n_rows, int n_model, int longest) {
        std::bernoulli_distribution is_held_up(world_.held_up);
        std::uniform_real_distribution<double> longer(2, 8), noise(1, 1.2);
        const double draft_ms = n_model > 0 ? 0.8 * n_model * longest + 0.1 * n * n_behind_ : 0;
        n_behind_ = n_model > 0 ? 0 : n_behind_ + 1;
        eagle_policy_drafted(policy_.impl, n, longest, draft_ms);
        const bool is_first = world_.is_first_slow && seen_rows_.insert(n_rows).second;
        const double decode = decode_ms(n, n_rows, world_.dear_ms) * (is_first ? 10 : 1);
        const double seen = noise(other_) * (is_held_up(other_) ? longer(other_) : 1);
        eagle_policy_decoded(policy_.impl, n, n_rows, decode * (world_.held_up > 0 ? seen : 1));
        ms_ = draft_ms + decode;
    }
};

double best_fixed(int n, World world) {
    double best = 0;
    for (world.n_draft = 0; world.n_draft <= 8; world.n_draft++) {
        Policy policy;
        best = std::max(best, Game(policy, n, world).play(400).speed);
    }
    return best;
}

void require_the_best_length(double held_up, double share) {
    for (const double dear_ms : {0.0, 1.0, 3.0, 6.0}) {
        Policy old;  // has seen others
        for (const int n : {1, 2, 4, 8}) {
            World world;
            world.dear_ms = dear_ms;
            world.held_up = held_up;
            const double best = best_fixed(n, world);
            Policy fresh;
            const double now = Game(fresh, n, world).play(400).speed, later = Game(old, n, world).play(400).speed;
            std::printf("%d sequences, %.0f ms a row, %.0f %% held up: %.3f and %.3f of the best fixed length\n", n,
                        dear_ms, 100 * held_up, now / best, later / best);
            require(std::min(now, later) > share * best, "as fast as the best fixed length");
        }
    }
}

// Nothing is right: at least 0.97 of plain, and drafts are probed; once they are right, they are made.
void require_probes() {
    World world;
    world.model_rate = 0.05;
    World plain = world;
    plain.n_draft = 0;
    Policy policy, other;
    const Played found = Game(policy, 1, world).play(1000);
    std::printf("nothing right: %.3f of plain\n", found.speed / Game(other, 1, plain).play(1000).speed);
    require(found.speed > 0.97 * Game(other, 1, plain).play(1000).speed, "wrong drafts cost little");
    require(Game(policy, 1, world).play(400).rounds[EAGLE_SOURCE_MODEL] >= 4, "and are probed");
    world.model_rate = 0.9;
    require(Game(policy, 1, world).play(200).rounds[EAGLE_SOURCE_MODEL] > 80, "right ones are noticed");
    world.model_rate = 0.05;
    require(Game(policy, 1, world).play(200).rounds[EAGLE_SOURCE_NONE] > 120, "and wrong ones, too");
}

void require_the_better_source() {
    World world;
    world.n_offered = 8;
    world.model_rate = 0.8;
    for (const int n : {1, 4}) {
        Policy policy(n);
        world.offer_rate = 0.1;
        require(Game(policy, n, world).play(200).rounds[EAGLE_SOURCE_MODEL] > 180, "the model where offers are wrong");
        world.offer_rate = 0.95;
        require(Game(policy, n, world).play(200).rounds[EAGLE_SOURCE_OFFER] > 150, "offers where they are right");
        world.offer_rate = 0.1;
        require(Game(policy, n, world).play(200).rounds[EAGLE_SOURCE_MODEL] > 150, "and the model again");
        Policy alone(n, false);
        world.offer_rate = 0.95;
        require(Game(alone, n, world).play(200).rounds[EAGLE_SOURCE_OFFER] > 190, "offers without a model");
        world.offer_rate = 0.01;
        require(Game(alone, n, world).play(400).rounds[EAGLE_SOURCE_NONE] > 300, "none that are wrong");
    }
}

void require_a_fixed_length() {
    Policy policy(2, true, 4);
    require(policy.choose({0})[0].n_draft == 4 && policy.choose({0}, 2)[0].n_draft == 2, "as long as there is room");
    const std::vector<llama_token> ids = {1, 2};
    eagle_policy_offer(policy.impl, 0, ids.data(), 2, 0, 0);
    const auto drafts = policy.choose({0, 1});
    require(drafts[1].source == EAGLE_SOURCE_MODEL && drafts[1].n_draft == 4, "the model's, without an offer");
    Policy alone(1, false, 4);
    require(alone.choose({0})[0].source == EAGLE_SOURCE_NONE, "nothing without both");
    eagle_policy_offer(alone.impl, 0, ids.data(), 2, 0, 0);
    require(alone.choose({0})[0].n_draft == 2, "as many as are offered");
}

// The first decode of a size says little of the next ones.
void require_offers_after_a_slow_decode() {
    World world;
    world.n_offered = 8;
    world.offer_rate = 0.95;
    world.is_first_slow = true;
    Policy alone(1, false);
    require(Game(alone, 1, world).play(200).rounds[EAGLE_SOURCE_OFFER] > 190, "offers after a slow first decode");
    Policy slow(1, false);
    world.is_first_slow = false;
    world.dear_ms = 0;
    for (int i = 0; i < 8; i++) {
        for (const int n_rows : {1, 2, 3, 4, 5, 7, 9}) {
            eagle_policy_decoded(slow.impl, 1, n_rows, n_rows == 1 ? 33.5 : 330);
        }
    }
    require(Game(slow, 1, world).play(3000).rounds[EAGLE_SOURCE_OFFER] > 500, "offers that were slow are probed");
}

// Where texts repeat, offers become long although another program slowed the first long ones.
void require_longer_offers_again() {
    Policy policy(1);
    for (int i = 0; i < 4; i++) {
        for (const int n_rows : {1, 2, 3, 4, 5, 7, 9}) {
            eagle_policy_decoded(policy.impl, 1, n_rows, decode_ms(1, n_rows, 0) * (n_rows > 4 ? 2.5 : 1));
        }
    }
    World world;
    world.n_offered = 8;
    world.n_match = 6;
    world.offer_rate = 1;
    Game(policy, 1, world).play(60);
    const auto ids = proposal(8, 8);
    eagle_policy_offer(policy.impl, 0, ids.data(), 8, 6, 0);
    require(policy.choose({0})[0].n_draft == 8, "long offers after slow ones");
}

// What is right after long matches says nothing of short ones.
void require_acceptance_by_match() {
    Policy policy(1, false);
    World world;
    world.n_offered = 8;
    world.n_match = 2;
    world.offer_rate = 0.01;
    Game(policy, 1, world).play(100);
    require(Game(policy, 1, world).play(100).rounds[EAGLE_SOURCE_OFFER] < 5, "none after short matches");
    world.n_match = 6;
    world.offer_rate = 0.95;
    require(Game(policy, 1, world).play(20).rounds[EAGLE_SOURCE_OFFER] == 20, "offers after long ones at once");
}

void require_fixed_offers() {
    Policy alone(1, false, 4);
    World world;
    world.n_offered = 4;
    require(Game(alone, 1, world).play(100).rounds[EAGLE_SOURCE_OFFER] == 100, "a fixed length takes every offer");
}

// Offers that take as long as rounds are made rarely while they are wrong.
void require_dear_offers_to_be_rare() {
    Policy policy(1);
    int n_offers = 0;
    for (int i = 0; i < 1000; i++) {
        if (eagle_policy_wants_offer(policy.impl)) {
            const std::vector<llama_token> ids = {1, 2, 3};
            eagle_policy_offer(policy.impl, 0, ids.data(), 3, 0, 20);
            n_offers++;
        }
        const auto draft = policy.choose({0})[0];
        eagle_policy_drafted(policy.impl, 1, draft.source == EAGLE_SOURCE_MODEL ? draft.n_draft : 0, 1);
        eagle_policy_decoded(policy.impl, 1, 1 + draft.n_draft, 30);
        eagle_policy_verified(policy.impl, 0, draft.n_draft, 0);
        const llama_token other = 9;
        eagle_policy_text(policy.impl, 0, &other, 1);
    }
    require(n_offers >= 3 && n_offers < 100, "offers that take time are made rarely");
}

void require_refusals() {
    eagle_policy_params params = eagle_policy_default_params();
    eagle_policy * none = nullptr;
    params.n_draft = 17;
    require(eagle_policy_new(&params, &none) == EAGLE_ERR_ARGUMENT && !none, "a length above the longest");
    Policy policy(1);
    require(eagle_policy_begin(policy.impl, 1) == EAGLE_ERR_ARGUMENT, "a sequence there is not");
    require(eagle_policy_choose(policy.impl, nullptr, 2) == EAGLE_ERR_ARGUMENT, "nor two of one");
}

}  // namespace

int main() {
    require_probes();
    require_the_better_source();
    require_a_fixed_length();
    require_dear_offers_to_be_rare();
    require_offers_after_a_slow_decode();
    require_longer_offers_again();
    require_acceptance_by_match();
    require_fixed_offers();
    require_refusals();
    require_the_best_length(0, 0.96);
    require_the_best_length(0.3, 0.85);
    std::puts("ok");
}
