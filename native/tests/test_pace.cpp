// Lengths of drafts: long where they are accepted and rows are cheap, short where many share the batch, none where they
// do not pay, and tried again now and then.

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "../src/llama-common/eagle_pace.h"

namespace {

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

// Rounds of one sequence whose drafts are accepted up to n_good tokens; a row costs row_ms beside the 10 of a decode.
// Every so many rounds another program holds one up.
eagle_pace after_rounds(int n_good, double row_ms, int stall_every = 1000) {
    eagle_pace pace(8, 8);
    for (std::vector<int> seqs = {0}; seqs.size() <= 8; seqs.push_back((int) seqs.size())) {
        require(pace.length(seqs) == 0, "the first round of so many sequences is plain");
    }
    for (int round = 0; round < 200; round++) {
        const int n = round % 9;
        pace.drafted(1, n, n * 0.5);
        pace.decoded(1, 1 + n, (10 + (1 + n) * row_ms) * (round % stall_every == stall_every - 1 ? 40 : 1));
        pace.accepted(0, n, std::min(n, n_good));
    }
    return pace;
}

int tries(eagle_pace & pace, int n_rounds) {
    int found = 0;
    for (int round = 0; round < n_rounds; round++) {
        found += pace.length({0});
    }
    return found;
}

// Each sequence has a state to read.
double decode_ms(int n_seq, int n_rows, double dear_ms) {
    return 30 + 2 * n_seq + 1.5 * n_rows + dear_ms * std::max(0, n_rows - 9);
}

// Tokens per ms of n sequences whose drafted tokens are right seven times of ten; each row above nine costs dear_ms
// more. n_draft: of all, -1: as the pace has it. `held_up`: the share of rounds that the pace sees take two to eight
// times as long.
double speed_of(eagle_pace & pace, int n, double dear_ms, int n_draft, double held_up) {
    std::mt19937 random(1), other(2);
    std::bernoulli_distribution is_right(0.7), is_held_up(held_up);
    std::uniform_real_distribution<double> longer(2, 8), noise(1, 1.2);
    std::vector<int> seqs(n);
    std::iota(seqs.begin(), seqs.end(), 0);
    double ms = 0, n_tokens = 0;
    int n_behind = 40;  // tokens of each that the draft has not read: here the prompts
    for (int round = 0; round < 400; round++) {
        int n_rows = 0, n_drafted = 0;
        const int paced = pace.length(seqs);
        for (int seq = 0; seq < n; seq++) {
            const int length = n_draft < 0 ? paced : n_draft;
            int n_accepted = 0;
            while (n_accepted < length && is_right(random)) {
                n_accepted++;
            }
            pace.accepted(seq, length, n_accepted);
            n_tokens += 1 + n_accepted;
            n_rows += 1 + length;
            n_drafted += length;
        }
        const double draft_ms = n_drafted > 0 ? 0.8 * n_drafted + 0.1 * n * n_behind : 0;
        n_behind = n_drafted > 0 ? 0 : n_behind + 1;
        pace.drafted(n, n_drafted / n, draft_ms);
        const double seen = noise(other) * (is_held_up(other) ? longer(other) : 1);
        pace.decoded(n, n_rows, decode_ms(n, n_rows, dear_ms) * (held_up > 0 ? seen : 1));
        ms += draft_ms + decode_ms(n, n_rows, dear_ms);
    }
    return n_tokens / ms;
}

double best_of(int n, double dear_ms, double held_up) {
    double best = 0;
    for (int n_draft = 0; n_draft <= 8; n_draft++) {
        eagle_pace pace(8, 8);
        best = std::max(best, speed_of(pace, n, dear_ms, n_draft, held_up));
    }
    return best;
}

void require_the_best_length(double held_up, double share) {
    for (double dear_ms : {0.0, 1.0, 3.0, 6.0}) {
        eagle_pace old(8, 8);  // has seen others
        for (int n : {1, 2, 4, 8}) {
            eagle_pace fresh(8, 8);
            const double best = best_of(n, dear_ms, held_up);
            const double paced = speed_of(fresh, n, dear_ms, -1, held_up),
                         later = speed_of(old, n, dear_ms, -1, held_up);
            std::printf("%d sequences, %.0f ms a row, %.0f %% held up: %.3f and %.3f of the best fixed length\n", n,
                        dear_ms, 100 * held_up, paced / best, later / best);
            require(std::min(paced, later) > share * best, "as fast as the best fixed length");
        }
    }
}

// A draft behind rounds without one reads what came meanwhile: dear once, and no reason to stop drafting.
void require_steps_without_what_came_before() {
    eagle_pace pace(8, 8);
    const std::vector<int> seqs = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int i = 0; i < 16; i++) {
        pace.drafted(8, 0, 0);
        pace.decoded(8, 8, 50);
        for (double ms : {40.0, 4.0}) {
            pace.drafted(8, 1, ms);
            pace.decoded(8, 16, 60);
        }
    }
    pace.decoded(8, 24, 200);
    int n_drafted = 0;
    for (int i = 0; i < 20; i++) {
        n_drafted += pace.length(seqs) > 0;
    }
    require(n_drafted == 20, "what came meanwhile is no cost of a drafted token");
}

}  // namespace

int main() {
    require_steps_without_what_came_before();
    require_the_best_length(0, 0.97);
    require_the_best_length(0.3, 0.95);
    eagle_pace good = after_rounds(8, 0.5);
    require(good.length({0}) == 8, "all that is accepted is drafted");
    eagle_pace bad = after_rounds(0, 0.5);
    const int at_first = tries(bad, 240), later = tries(bad, 240);
    require(at_first >= 2 && at_first <= 6, "what is never accepted is tried now and then");
    require(later < at_first, "and ever more seldom");
    bad.began(0);
    require(tries(bad, 240) >= at_first, "but for another text");
    eagle_pace shared = after_rounds(2, 3.0);
    require(shared.length({0, 1, 2, 3, 4, 5, 6, 7}) <= shared.length({0}),
            "dear rows are not spent where eight share them");
    for (int every = 5; every < 18; every++) {
        eagle_pace disturbed = after_rounds(8, 0.5, every);
        require(disturbed.length({0}) >= 6, "what other programs hold up shortens no draft");
    }
    require(good.length({1}) > 0, "a sequence that has not begun is given a draft");
    require(good.free_length(0, 0.2, 8, {0}, 0) == 0, "guesses give way to drafts that are right");
    require(bad.free_length(0, 0.95, 8, {0}, 0) == 8, "and are taken where drafts are wrong");
    require(bad.free_length(0, 0.95, 3, {0}, 0) == 3, "as many as there are");
    require(bad.free_length(0, 0.0, 8, {0}, 0) == 0, "unless they are wrong, too");
    require(bad.free_length(0, 0.95, 8, {0, 1}, 3) == 3, "where several are decoded together, as many as for all");
    require(bad.free_length(0, 0.95, 2, {0, 1}, 3) == 0, "or none");
    std::puts("ok");
}
