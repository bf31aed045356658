// Units of work among the tickets of a node (eagle_team.h): each begins with neighbours of its own, and helps the
// others when it is done.
//
// Neighbouring units write to neighbouring memory. Where two threads compute them at the same time they take cache
// lines from each other, at every store, which costs most between cores without a common cache.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <new>

#include "eagle_timeslice.h"
#include "ggml-cpu-impl.h"

namespace eagle {

// The next address that vectors may be stored at; work buffers have 64 bytes to spare for it.
inline char * align64(void * p) {
    return (char *) (((uintptr_t) p + 63) / 64 * 64);
}

class shares {
  public:
    static constexpr size_t work_size(int n_threads) { return (size_t) (n_threads + 1) * sizeof(counter); }

    // `work`: the work_size() bytes that share_out() has prepared for the same n units.
    shares(const ggml_compute_params * params, char * work, int64_t n)
        : counters_((counter *) work), ith_(params->ith), nth_(params->nth), n_(n), slice_(timeslice::mine()) {}

    // Prepares units [0, n). Ticket 0 does it, in a phase before the units are taken.
    static void share_out(const ggml_compute_params * params, char * work, int64_t n) {
        for (int i = 0; params->ith == 0 && i < params->nth; ++i) {
            new ((counter *) work + i) counter{{begin(n, i, params->nth)}};
        }
        if (params->ith == 0) {
            new ((counter *) work + params->nth) counter{{0}};
        }
    }

    // A unit that is this ticket's to compute, or -1: all are taken, or left to the other tickets because the core is
    // about to be taken away.
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

    // Whether a ticket has left, once this one's last unit is done.
    bool was_left() const { return counters_[nth_].next.load(std::memory_order_relaxed) != 0; }

  private:
    // All tickets but one may leave: that one sees every unit taken.
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
    int helped_ = 0;  // tickets whose units are all taken, this one first
};

}  // namespace eagle
