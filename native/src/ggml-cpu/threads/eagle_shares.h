// Distributes units of work among the tickets of a node (eagle_team.h). Each ticket starts with adjacent units of its
// own, and helps the others when it is done.
//
// Adjacent units write to adjacent memory. If two threads compute them at the same time, cache lines move between their
// cores at every store, which is slowest between cores without a shared cache.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <new>

#include "eagle_timeslice.h"
#include "ggml-cpu-impl.h"

namespace eagle {

// Rounds up to an address that is aligned for vectors; work buffers have 64 spare bytes for it.
inline char * align64(void * p) {
    return (char *) (((uintptr_t) p + 63) / 64 * 64);
}

class shares {
  public:
    static constexpr size_t work_size(int n_threads) { return (size_t) (n_threads + 1) * sizeof(counter); }

    // `work`: work_size() bytes that share_out() has prepared for the same n units.
    shares(const ggml_compute_params * params, char * work, int64_t n)
        : counters_((counter *) work), ith_(params->ith), nth_(params->nth), n_(n), slice_(timeslice::mine()) {}

    // Prepares units [0, n). Ticket 0 does this in an earlier phase.
    static void share_out(const ggml_compute_params * params, char * work, int64_t n) {
        for (int i = 0; params->ith == 0 && i < params->nth; ++i) {
            new ((counter *) work + i) counter{{begin(n, i, params->nth)}};
        }
        if (params->ith == 0) {
            new ((counter *) work + params->nth) counter{{0}};
        }
    }

    // Returns the next unit for this ticket. -1: none is left, or the ticket leaves the rest to the others because it
    // is about to lose its core.
    int64_t next() {
        if (slice_.is_spent() && leaves()) {
            return -1;
        }
        for (; helped_ < nth_; ++helped_) {
            const int whose = (ith_ + helped_) % nth_;
            const int64_t unit = counters_[whose].next.fetch_add(1, std::memory_order_relaxed);
            if (unit < begin(n_, whose + 1, nth_)) {
                return unit;
            }
        }
        return -1;
    }

    // Returns true if a ticket has left early; call it after this ticket's last unit.
    bool was_left() const { return counters_[nth_].next.load(std::memory_order_relaxed) != 0; }

  private:
    // All tickets but one may leave; the last one computes the remaining units.
    bool leaves() {
        slice_.has_left = counters_[nth_].next.fetch_add(1, std::memory_order_relaxed) < nth_ - 1;
        return slice_.has_left;
    }

    struct alignas(64) counter {
        std::atomic<int64_t> next;
    };

    static int64_t begin(int64_t n, int ticket, int n_tickets) { return n * ticket / n_tickets; }

    counter * counters_;
    int ith_, nth_;
    int64_t n_;
    timeslice & slice_;
    int helped_ = 0;  // number of tickets, counted from this one, whose units are all taken
};

}  // namespace eagle
