#include "eagle_grammar.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "eagle_error.h"
#include "eagle_sampler.h"
#include "ggml.h"
#include "llama-grammar.h"
#include "llama-vocab.h"

namespace eagle {

namespace {

thread_local int depth = 0;
thread_local int64_t start_us = 0;  // 0: the clock is stopped
thread_local size_t n_repeated = 0;
thread_local std::string error;
thread_local std::map<std::pair<uint64_t, std::vector<uint32_t>>, uint32_t> shared;

constexpr uint64_t GROUP = 0;  // in place of a number of repetitions

std::pair<uint64_t, std::vector<uint32_t>> shared_key(const std::vector<llama_grammar_element> & symbols,
                                                      uint64_t n_times) {
    std::vector<uint32_t> values;
    for (const llama_grammar_element & each : symbols) {
        values.push_back((uint32_t) each.type);
        values.push_back(each.value);
    }
    return {n_times, values};
}

[[noreturn]] void refuse(const std::string & why) {
    throw Error(EAGLE_ERR_ARGUMENT, "the grammar " + why);
}

// The parser's messages end with the whole unread text. Replaces it by the line number and the rest of that line.
std::string with_line(const std::string & message, const std::string & text) {
    const std::string at = " at ";
    for (size_t i = message.find(at); i != std::string::npos; i = message.find(at, i + 1)) {
        const std::string rest = message.substr(i + at.size());
        if (rest.size() <= text.size() && text.compare(text.size() - rest.size(), rest.size(), rest) == 0) {
            const auto line = 1 + std::count(text.begin(), text.end() - (std::ptrdiff_t) rest.size(), '\n');
            const std::string seen = rest.empty() ? "the end" : rest.substr(0, rest.find('\n'));
            return format("%s in line %lld, at %.60s", message.substr(0, i).c_str(), (long long) line, seen.c_str());
        }
    }
    return format("%.200s", message.c_str());
}

// Returns true if `text` begins with the characters of `piece`; a set of characters does not match.
bool is_literal(const llama_grammar_element * text, const char * piece) {
    for (; *piece != 0; piece++, text++) {
        const bool is_set = text->type != LLAMA_GRETYPE_CHAR || text[1].type == LLAMA_GRETYPE_CHAR_ALT ||
                            text[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
        if (is_set || text->value != (uint8_t) *piece) {
            return false;
        }
    }
    return true;
}

// A control token that is a candidate, until an element of the grammar names it.
struct UnnamedControl {
    llama_token_data * candidate;
    const char * piece;

    bool is_named_by(const llama_grammar_element & element) const {
        return element.type == LLAMA_GRETYPE_TOKEN_NOT ||
               (element.type == LLAMA_GRETYPE_TOKEN && element.value == (uint32_t) candidate->id) ||
               is_literal(&element, piece);
    }
};

std::vector<UnnamedControl> allowed_controls(const llama_vocab & vocab, llama_token_data_array & candidates) {
    std::vector<UnnamedControl> found;
    for (size_t i = 0; i < candidates.size; i++) {
        llama_token_data & each = candidates.data[i];
        if (each.logit != -INFINITY && vocab.is_control(each.id) && !vocab.is_eog(each.id)) {
            found.push_back({&each, vocab.token_to_piece(each.id).c_str()});
        }
    }
    return found;
}

}  // namespace

void reject_unnamed_controls(const llama_grammar & grammar, llama_token_data_array & candidates) {
    std::vector<UnnamedControl> controls = allowed_controls(*grammar.vocab, candidates);
    for (size_t i = 0; i < grammar.rules.size() && !controls.empty(); i++) {
        for (const llama_grammar_element & element : grammar.rules[i]) {
            const auto is_named = [&](const UnnamedControl & each) { return each.is_named_by(element); };
            controls.erase(std::remove_if(controls.begin(), controls.end(), is_named), controls.end());
        }
    }
    for (const UnnamedControl & each : controls) {
        each.candidate->logit = -INFINITY;
    }
}

void require_grammar_size(const char * text) {
    if (strnlen(text, MAX_GRAMMAR_BYTES + 1) > MAX_GRAMMAR_BYTES) {
        refuse(format("is longer than %zu bytes", MAX_GRAMMAR_BYTES));
    }
}

void require_repetition(uint64_t min_times, uint64_t max_times) {
    if (max_times < min_times) {
        refuse(format("repeats something {%llu,%llu} times, more at least than at most", (unsigned long long) min_times,
                      (unsigned long long) max_times));
    }
    const uint64_t most = max_times == UINT64_MAX ? min_times : max_times;
    if (most > MAX_GRAMMAR_TIMES) {  // llama.cpp would silently ignore a larger upper bound
        refuse(format("repeats something %llu times, the most is %llu", (unsigned long long) most,
                      (unsigned long long) MAX_GRAMMAR_TIMES));
    }
}

void require_repeated(const std::string & rule, uint64_t n_rules) {
    if (n_rules > MAX_GRAMMAR_REPEATED) {
        refuse(format("repeats more than %zu symbols, the last in the rule %.100s: lower its maxItems, maxLength or {}",
                      MAX_GRAMMAR_REPEATED, rule.c_str()));
    }
}

void count_repeated(const std::string & rule, uint64_t n_symbols, uint64_t n_times) {
    n_repeated += (n_symbols + 1) * std::min<uint64_t>(n_times, MAX_GRAMMAR_REPEATED);
    require_repeated(rule, n_repeated);
}

void SharedRules::clear() {
    shared.clear();
}

const uint32_t * SharedRules::repetition(const std::vector<llama_grammar_element> & symbols, uint64_t n_times) {
    const auto found = shared.find(shared_key(symbols, n_times));
    return found == shared.end() ? nullptr : &found->second;
}

void SharedRules::add_repetition(const std::vector<llama_grammar_element> & symbols, uint64_t n_times, uint32_t rule) {
    shared.emplace(shared_key(symbols, n_times), rule);
}

uint32_t SharedRules::group(const std::vector<llama_grammar_element> & symbols, uint32_t rule) {
    return shared.emplace(shared_key(symbols, GROUP), rule).first->second;
}

GrammarLevel::GrammarLevel() {
    if (depth == MAX_GRAMMAR_DEPTH) {
        refuse(format("is nested deeper than %d levels", MAX_GRAMMAR_DEPTH));
    }
    depth++;
}

GrammarLevel::~GrammarLevel() {
    depth--;
}

GrammarClock::GrammarClock() : outermost_(start_us == 0) {
    if (outermost_) {
        start_us = ggml_time_us();
        n_repeated = 0;
    }
}

GrammarClock::~GrammarClock() {
    if (outermost_) {
        start_us = 0;
    }
}

void GrammarStates::add(size_t n_levels) {
    n_levels_ += n_levels;
    if (n_levels_ > MAX_GRAMMAR_STATES) {
        refuse("can be in too many states at one place of the text");
    }
    if (start_us != 0 && ggml_time_us() - start_us > MAX_GRAMMAR_SECONDS * int64_t(1'000'000)) {
        refuse(format("takes more than %d s for one token", MAX_GRAMMAR_SECONDS));
    }
}

size_t trigger_start(llama_grammar & grammar, const llama_grammar_trigger_pattern & pattern) {
    const size_t start = pattern.find(grammar.trigger_buffer);
    if (start == std::string::npos) {
        return start;
    }
    const auto stacks = grammar.stacks;
    const auto partial_utf8 = grammar.partial_utf8;
    bool is_accepted = true;
    try {
        for (const auto & [token, place] : grammar.trigger_buffer_positions) {
            if (place.second > start) {
                const size_t begin = std::max(place.first, start);
                llama_grammar_accept_token(grammar, token, grammar.trigger_buffer.substr(begin, place.second - begin));
            }
        }
    } catch (const Error &) {  // a limit
        throw;
    } catch (const std::runtime_error &) {
        is_accepted = false;
        grammar.trigger_buffer.clear();
        grammar.trigger_buffer_positions.clear();
    }
    grammar.stacks = stacks;
    grammar.partial_utf8 = partial_utf8;
    return is_accepted ? start : std::string::npos;
}

void require_allowed(const llama_token_data_array & candidates) {
    const llama_token_data * begin = candidates.data;
    if (std::all_of(begin, begin + candidates.size,
                    [](const llama_token_data & each) { return each.logit == -INFINITY; })) {
        refuse("allows no token here: it wants what no token of the vocabulary begins with. Change the grammar");
    }
}

void refuse_end() {
    refuse("allows no end of the text here");
}

void note_grammar_error(const char * why) {
    error = why;
}

}  // namespace eagle

int32_t eagle_grammar_check(const struct llama_vocab * vocab, const char * text, const char * root) {
    return eagle::guarded("eagle_grammar_check", [&] {
        if (text == nullptr || root == nullptr) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "text or root is null");
        }
        eagle::require_grammar_size(text);
        eagle::note_grammar_error("no rule of that name, or a rule that begins with itself");
        const std::unique_ptr<llama_grammar, void (*)(llama_grammar *)> grammar(
            llama_grammar_init_impl(vocab, text, root, false, nullptr, 0, nullptr, 0), llama_grammar_free_impl);
        if (grammar == nullptr) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT,
                               "the grammar cannot be parsed: " + eagle::with_line(eagle::error, text));
        }
    });
}
