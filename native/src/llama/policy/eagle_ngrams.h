// Tokens by the n-gram before them, with counts that fade, in a table of fixed size.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "llama.h"

namespace eagle {

class Ngrams {
  public:
    // A cache line: the continuations of the n-grams that share a hash's lower bits.
    static constexpr size_t N_BUCKETS = 1 << 18, N_WAYS = 4;  // 16 MiB: some 200,000 tokens of text

    struct Entry {
        uint32_t check;  // upper bits of the hash
        llama_token token;
        float weight;   // 0: empty
        uint32_t time;  // of the last observation
    };

    Ngrams();

    static uint64_t hash(const llama_token * ids, int n);

    // `token` followed the n-gram with this hash.
    void observe(uint64_t hash, llama_token token);

    // The token that most likely follows, -1: none is known.
    llama_token find(uint64_t hash) const;

    // All entries, N_WAYS for each bucket.
    const Entry * entries() const { return entries_.get(); }
    uint32_t now() const { return now_; }

    // Takes in an entry of another table at its time `now`. Of one that both have, the larger count and the later time
    // stay: tables that have a part in common can be merged again and again.
    void merge(size_t bucket, const Entry & other);
    void merged(uint32_t now);

  private:
    struct Free {
        void operator()(Entry * entries) const { std::free(entries); }
    };

    std::unique_ptr<Entry, Free> entries_;  // pages that are not used take no memory
    uint32_t now_ = 0;

    Entry * bucket(uint64_t hash) const { return entries_.get() + (hash % N_BUCKETS) * N_WAYS; }
};

}  // namespace eagle
