#include "eagle_ngrams.h"

#include <algorithm>
#include <new>

namespace eagle {

namespace {

constexpr float FADING =
    0.5f;  // of a count, whenever another token followed: the last one wins unless it is the rare one

}  // namespace

Ngrams::Ngrams() : entries_((Entry *) std::calloc(N_BUCKETS * N_WAYS, sizeof(Entry))) {
    if (!entries_) {
        throw std::bad_alloc();
    }
}

uint64_t Ngrams::hash(const llama_token * ids, int n) {
    uint64_t hash = (uint64_t) n;
    for (int i = 0; i < n; i++) {
        hash = (hash ^ (uint32_t) ids[i]) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    return hash * 0x9e3779b97f4a7c15;
}

void Ngrams::observe(uint64_t hash, llama_token token) {
    Entry * entry = bucket(hash);
    Entry * oldest = entry;
    Entry * own = nullptr;
    now_++;
    for (size_t i = 0; i < N_WAYS; i++, entry++) {
        const bool is_same = entry->weight > 0 && entry->check == (uint32_t) (hash >> 32);
        if (is_same && entry->token == token) {
            own = entry;
        } else if (is_same) {
            entry->weight *= FADING;
        }
        oldest = entry->time < oldest->time ? entry : oldest;
    }
    if (!own) {
        own = oldest;
        *own = {(uint32_t) (hash >> 32), token, 0, 0};
    }
    own->weight += 1;
    own->time = now_;
}

llama_token Ngrams::find(uint64_t hash) const {
    const Entry * entry = bucket(hash);
    const Entry * best = nullptr;
    for (size_t i = 0; i < N_WAYS; i++, entry++) {
        if (entry->weight == 0 || entry->check != (uint32_t) (hash >> 32)) {
            continue;
        }
        if (!best || entry->weight > best->weight || (entry->weight == best->weight && entry->time > best->time)) {
            best = entry;
        }
    }
    return best ? best->token : -1;
}

void Ngrams::merge(size_t bucket, const Entry & other) {
    Entry * entry = entries_.get() + bucket * N_WAYS;
    Entry * oldest = entry;
    for (size_t i = 0; i < N_WAYS; i++, entry++) {
        if (entry->weight > 0 && entry->check == other.check && entry->token == other.token) {
            entry->weight = std::max(entry->weight, other.weight);
            entry->time = std::max(entry->time, other.time);
            return;
        }
        oldest = entry->time < oldest->time ? entry : oldest;
    }
    if (oldest->weight == 0 || oldest->time < other.time) {
        *oldest = other;
    }
}

void Ngrams::merged(uint32_t now) {
    now_ = std::max(now_, now);
    if (now_ > UINT32_MAX / 2) {  // it would begin anew: half of it keeps the order
        now_ /= 2;
        std::for_each(entries_.get(), entries_.get() + N_BUCKETS * N_WAYS, [](Entry & entry) { entry.time /= 2; });
    }
}

}  // namespace eagle
