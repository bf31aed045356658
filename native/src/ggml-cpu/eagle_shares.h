// Units of work among threads: each begins with neighbours of its own, and helps the others when it is done.
//
// Neighbouring units write to neighbouring memory. Where two threads compute them at the same time they take cache
// lines from each other, at every store, which costs most between cores without a common cache.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <new>

#include "ggml-cpu-impl.h"

namespace eagle {

// The next address that vectors may be stored at; work buffers have 64 bytes to spare for it.
inline char * align64(void * p) {
    return (char *) (((uintptr_t) p + 63) / 64 * 64);
}

class shares {
  public:
    static constexpr size_t work_size(int n_threads) { return (size_t) n_threads * sizeof(counter); }

    // Units [0, n). `work`: work_size() bytes for all threads together, each of which makes its own `shares` before a
    // barrier.
    shares(const ggml_compute_params * params, char * work, int64_t n)
        : counters_((counter *) work), ith_(params->ith), nth_(params->nth), n_(n) {
        new (&counters_[ith_]) counter{{begin(ith_)}};
    }

    // A unit that is this thread's to compute, or -1: all are taken.
    int64_t next() {
        for (; helped_ < nth_; ++helped_) {
            const int whose = (ith_ + helped_) % nth_;
            const int64_t unit = counters_[whose].next.fetch_add(1, std::memory_order_relaxed);
            if (unit < begin(whose + 1)) {
                return unit;
            }
        }
        return -1;
    }

  private:
    struct alignas(64) counter {
        std::atomic<int64_t> next;
    };

    int64_t begin(int thread) const { return n_ * thread / nth_; }

    counter * counters_;
    int ith_, nth_;
    int64_t n_;
    int helped_ = 0;  // threads whose units are all taken, this one first
};

}  // namespace eagle
