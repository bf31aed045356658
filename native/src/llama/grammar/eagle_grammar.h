// Limits for untrusted grammars. llama.cpp's parser recurses as deep as its input, and a grammar can reach
// exponentially many states. Exceeding a limit throws an Error that names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"

struct llama_grammar;
struct llama_grammar_element;
struct llama_grammar_trigger_pattern;

namespace eagle {

constexpr size_t MAX_GRAMMAR_BYTES = 1 << 20;
constexpr int MAX_GRAMMAR_DEPTH = 1000;           // nested groups, or rules that begin with each other
constexpr uint64_t MAX_GRAMMAR_TIMES = 2000;      // per repetition; llama.cpp's MAX_REPETITION_THRESHOLD
constexpr size_t MAX_GRAMMAR_REPEATED = 500'000;  // total symbols and rules of expanded repetitions
constexpr size_t MAX_GRAMMAR_STATES = 4'000'000;  // total levels of the states explored after one character
constexpr int MAX_GRAMMAR_SECONDS = 2;            // for one token, or for the initial state

void require_grammar_size(const char * text);

// Checks a repetition before it is expanded. max_times UINT64_MAX: no upper bound.
void require_repetition(uint64_t min_times, uint64_t max_times);

// Checks the number of rules that a repetition in `rule` expands to, with the rules of the repeated part.
void require_repeated(const std::string & rule, uint64_t n_rules);

// Adds n_times copies of n_symbols to the count of the grammar that is being parsed; `rule` has the repetition.
void count_repeated(const std::string & rule, uint64_t n_symbols, uint64_t n_times);

// Generated rules of the grammar that is being parsed. Equal ones are one rule: the hundreds of bounded lists and texts
// of large tool catalogues would otherwise exceed the limit of repetitions.
class SharedRules {
  public:
    // Forgets the rules of the grammar that this thread has parsed before.
    static void clear();

    // Returns the rule of up to n_times repetitions of `symbols` (UINT64_MAX: any number), null if there is none yet.
    static const uint32_t * repetition(const std::vector<llama_grammar_element> & symbols, uint64_t n_times);
    static void add_repetition(const std::vector<llama_grammar_element> & symbols, uint64_t n_times, uint32_t rule);

    // Returns the first group with the same symbols, which is `rule` if there is no other.
    static uint32_t group(const std::vector<llama_grammar_element> & symbols, uint32_t rule);
};

// Counts one level of recursion while the object exists.
class GrammarLevel {
  public:
    GrammarLevel();
    ~GrammarLevel();
    GrammarLevel(const GrammarLevel &) = delete;
    GrammarLevel & operator=(const GrammarLevel &) = delete;
};

// Starts the time limit for one token and resets the count of repetitions, unless an outer object on this thread has.
class GrammarClock {
  public:
    GrammarClock();
    ~GrammarClock();
    GrammarClock(const GrammarClock &) = delete;
    GrammarClock & operator=(const GrammarClock &) = delete;

  private:
    bool outermost_;
};

// Counts the states explored after one character.
class GrammarStates {
  public:
    void add(size_t n_levels);

  private:
    size_t n_levels_ = 0;
};

// Returns true if a character may begin with `byte`: C0, C1 and F5 to FF occur in no well-formed UTF-8.
inline bool utf8_begins(uint8_t byte) {
    return byte < 0x80 || (0xC2 <= byte && byte <= 0xF4);
}

// Returns true if `byte` may follow. `value`: bits of the character so far; `n_remain`: bytes it lacks, this one
// included. Overlong forms, surrogates and values above U+10FFFF are refused, as JSON parsers and Python refuse them.
inline bool utf8_continues(uint32_t value, int n_remain, uint8_t byte) {
    const uint32_t next = value << 6 | (byte & 0x3F);
    const bool of_four = n_remain != 3 || (0x10 <= next && next <= 0x10F);
    const bool of_three = n_remain != 2 || (0x20 <= next && (next < 0x360 || 0x37F < next));
    return byte >> 6 == 2 && of_four && of_three;
}

// Rejects control tokens that the grammar names nowhere, neither as a token nor as a literal: their text matches its
// character classes and is missing in the answer. candidates: what the grammar has left.
void reject_unnamed_controls(const llama_grammar & grammar, llama_token_data_array & candidates);

// Returns where the text begins that triggers a lazy grammar; npos without a trigger. If the token that completes the
// trigger continues with what the grammar refuses, it has begun no call: the text is forgotten, a later one triggers.
size_t trigger_start(llama_grammar & grammar, const llama_grammar_trigger_pattern & pattern);

// Throws if the grammar has rejected every candidate: no token of the vocabulary can follow.
void require_allowed(const llama_token_data_array & candidates);

// Throws because the text ended where the grammar does not allow it.
[[noreturn]] void refuse_end();

// Stores the reason why a grammar cannot be parsed, for eagle_grammar_check.
void note_grammar_error(const char * why);

}  // namespace eagle
