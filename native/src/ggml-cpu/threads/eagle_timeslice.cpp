#include "eagle_timeslice.h"

#include "eagle_clock.h"
#include "eagle_cores.h"
#ifdef __linux__
#include <sched.h>
#include <sys/resource.h>
#endif

namespace eagle {

// Linux preempts threads at its ticks, which are 1 to 4 ms apart. A thread that yields after 2 ms gets its core back at
// the next 4 ms tick.
static constexpr int64_t SLICE_NS = 2'000'000;
static constexpr int64_t GAP_NS = 500'000;  // pieces are shorter, so after a longer gap the thread was not running
static constexpr int64_t MEMORY_NS = 200'000'000;  // a core counts as contended for this time after a preemption

timeslice & timeslice::mine() {
    static thread_local timeslice own;
    return own;
}

#ifdef __linux__

void timeslice::observe() {
    rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0) {
        return;
    }
    const bool switched = usage.ru_nivcsw != switches_;
    switches_ = usage.ru_nivcsw;
    if (!switched && !contended_) {
        return;
    }
    const int64_t now = now_ns();
    last_switch_ns_ = switched ? now : last_switch_ns_;
    contended_ = now - last_switch_ns_ < MEMORY_NS;
}

void timeslice::yield_if_spent() {
    if (is_spent()) {
        sched_yield();
        begin_ns_ = seen_ns_ = now_ns();
    }
}

#else  // other systems do not count the switches of one thread

void timeslice::observe() {}
void timeslice::yield_if_spent() {}

#endif

bool timeslice::measure() {
    const int64_t now = now_ns();
    if (now - seen_ns_ > GAP_NS) {
        begin_ns_ = now;
    }
    seen_ns_ = now;
    return now - begin_ns_ > SLICE_NS;
}

void timeslice::keep_apart(int thread, int n_threads, int callers_core) {
    const std::vector<int> & cores = allowed_cores();
    int core = -1;
    if (contended_ && n_threads == (int) cores.size()) {
        core = cores[thread] == callers_core ? cores[0] : cores[thread];
    }
    if (core != core_) {
        core_ = core;
        stay_on_core(core);
    }
}

}  // namespace eagle
