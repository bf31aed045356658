// What a grammar from a stranger may cost. llama.cpp's parser recurses as deep as its input, and the states that a
// grammar can be in may be exponentially many: each limit below ends in an Error that says so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llama.h"

namespace eagle {

constexpr size_t MAX_GRAMMAR_BYTES = 1 << 20;
constexpr int MAX_GRAMMAR_DEPTH = 1000;           // nested groups, or rules that begin with each other
constexpr uint64_t MAX_GRAMMAR_TIMES = 2000;      // of one repetition; llama.cpp's MAX_REPETITION_THRESHOLD
constexpr size_t MAX_GRAMMAR_REPEATED = 500'000;  // symbols and rules that repetitions are written out to
constexpr size_t MAX_GRAMMAR_STATES = 4'000'000;  // levels of all the states explored behind one character
constexpr int MAX_GRAMMAR_SECONDS = 2;            // for one token, or to begin with

void require_grammar_size(const char * text);

// Before anything is repeated. max_times UINT64_MAX: no greatest number.
void require_repetition(uint64_t min_times, uint64_t max_times);

// One more repetition of so many symbols, in the grammar that is being read.
void count_repeated(uint64_t n_symbols, uint64_t n_times);

// One level of the recursion, as long as it lives.
class GrammarLevel {
  public:
    GrammarLevel();
    ~GrammarLevel();
    GrammarLevel(const GrammarLevel &) = delete;
    GrammarLevel & operator=(const GrammarLevel &) = delete;
};

// The time for one token begins, unless it runs already on this thread; so does the count of repetitions.
class GrammarClock {
  public:
    GrammarClock();
    ~GrammarClock();
    GrammarClock(const GrammarClock &) = delete;
    GrammarClock & operator=(const GrammarClock &) = delete;

  private:
    bool outermost_;
};

// The states explored behind one character.
class GrammarStates {
  public:
    void add(size_t n_levels);

  private:
    size_t n_levels_ = 0;
};

// Throws when a grammar has left no candidate: its states accept nothing that the vocabulary has.
void require_allowed(const llama_token_data_array & candidates);

// The end of the text was accepted where the grammar does not allow it.
[[noreturn]] void refuse_end();

// Keeps why a grammar cannot be parsed, for eagle_grammar_check.
void note_grammar_error(const char * why);

}  // namespace eagle
