// Tests the guards against expensive grammars, JSON and templates by calling them just inside and just beyond a limit.
// The call sites are tested in tests/e2e.

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eagle_grammar.h"
#include "eagle_json_limits.h"
#include "eagle_template.h"

namespace {

int n_failed = 0;

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        n_failed++;
    }
}

// Returns the reason of a refusal; empty if there is none.
std::string refused(const std::function<void()> & call) {
    try {
        call();
    } catch (const std::exception & error) {
        return error.what();
    }
    return "";
}

void require_refused(const std::function<void()> & call, const char * reason) {
    const std::string found = refused(call);
    require(found.find(reason) != std::string::npos, (std::string(reason) + ", not: " + found).c_str());
}

// Returns the reason for which `n` objects of a level are refused.
template <typename Level>
std::string nested(int n) {
    return refused([&] {
        std::vector<std::unique_ptr<Level>> levels;
        for (int i = 0; i < n; i++) {
            levels.push_back(std::make_unique<Level>());
        }
    });
}

template <typename Level>
void check_levels(int limit) {
    require(nested<Level>(limit).empty(), "a level inside the limit");
    require(nested<Level>(limit + 1).find("nested deeper than " + std::to_string(limit)) != std::string::npos,
            "a level beyond the limit");
    require(nested<Level>(limit).empty(), "levels are given back");
}

void check_repetitions() {
    using eagle::MAX_GRAMMAR_REPEATED;
    using eagle::MAX_GRAMMAR_TIMES;
    require(refused([] { eagle::require_repetition(MAX_GRAMMAR_TIMES, UINT64_MAX); }).empty(), "as often as allowed");
    require_refused([] { eagle::require_repetition(MAX_GRAMMAR_TIMES + 1, UINT64_MAX); }, "the most is 2000");
    require_refused([] { eagle::require_repetition(0, MAX_GRAMMAR_TIMES + 1); }, "the most is 2000");
    require_refused([] { eagle::require_repetition(2, 1); }, "more at least than at most");
    const eagle::GrammarClock clock;
    require(refused([] { eagle::count_repeated("r", 1, MAX_GRAMMAR_REPEATED / 2); }).empty(),
            "symbols inside the limit");
    require_refused([] { eagle::count_repeated("r", 1, 1); }, "repeats more than 500000 symbols");
}

void check_states() {
    eagle::GrammarStates states;
    states.add(eagle::MAX_GRAMMAR_STATES);
    require_refused([&] { states.add(1); }, "too many states");
    require_refused([] { eagle::refuse_end(); }, "allows no end of the text here");
}

void check_candidates() {
    std::vector<llama_token_data> all = {{0, -INFINITY, 0}, {1, 1.0f, 0}};
    llama_token_data_array candidates = {all.data(), all.size(), -1, false};
    require(refused([&] { eagle::require_allowed(candidates); }).empty(), "one token is allowed");
    all[1].logit = -INFINITY;
    require_refused([&] { eagle::require_allowed(candidates); }, "allows no token here");
}

void check_json() {
    const auto arrays = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
    require(eagle_json_excess(arrays(EAGLE_MAX_JSON_DEPTH)).empty(), "arrays inside the limit");
    require(!eagle_json_excess(arrays(EAGLE_MAX_JSON_DEPTH + 1)).empty(), "arrays beyond the limit");
}

void check_templates() {
    const eagle_template_rendering rendering;
    auto & counts = eagle_template_rendering::counts();
    require(refused([] { eagle_template_repeats(0, EAGLE_TEMPLATE_BYTES / 2); }).empty(), "bytes inside the limit");
    require_refused([] { eagle_template_repeats(0, EAGLE_TEMPLATE_BYTES / 2 + 1); }, "more than 1024 MiB");
    counts.n_bytes = 0;
    require_refused([] { eagle_template_repeats(1, INT64_MAX); }, "more than 1024 MiB");
    counts.n_bytes = 0;
    counts.end = std::chrono::steady_clock::now() - std::chrono::seconds(1);
    require_refused([] { eagle_template_takes(0); }, "more than 10 s");
}

}  // namespace

int main() {
    check_levels<eagle::GrammarLevel>(eagle::MAX_GRAMMAR_DEPTH);
    check_levels<eagle_template_level>(EAGLE_TEMPLATE_DEPTH);
    check_repetitions();
    check_states();
    check_candidates();
    check_json();
    check_templates();
    std::printf("%s\n", n_failed == 0 ? "ok" : "failed");
    return n_failed == 0 ? 0 : 1;
}
