#include "eagle_team.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "eagle_clock.h"
#include "eagle_cores.h"
#include "eagle_parking.h"
#include "eagle_timeslice.h"
#ifndef _WIN32
#include <pthread.h>
#endif

namespace eagle {

// A step takes tens of microseconds, and so does waking a thread.
static constexpr int64_t PATIENCE_NS = 2'000;  // before a thread takes another thread's ticket
static constexpr int64_t STEP_SPIN_NS = 30'000;
static constexpr int64_t IDLE_SPIN_NS = 200'000;  // between the graphs of a text

// number and sleepers are accessed in opposite order here and in wait(), so at least one side sees the other's change
// and no thread sleeps forever.
void team::event::change(uint32_t value) {
    number.store(value, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
        unpark_all(number);
    }
}

bool team::event::changes(uint32_t seen, int64_t spin_ns) const {
    constexpr int CHECKS = 16;  // between two reads of the clock
    int64_t end = 0;
    do {
        for (int i = 0; i < CHECKS; ++i) {
            if (number.load(std::memory_order_acquire) != seen) {
                return true;
            }
            relax();
        }
        const int64_t now = now_ns();
        end = end == 0 ? now + spin_ns : end;
        if (now >= end) {
            return false;
        }
    } while (true);
}

void team::event::wait(uint32_t seen, int64_t spin_ns) {
    if (changes(seen, spin_ns)) {
        return;
    }
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (number.load(std::memory_order_seq_cst) == seen) {
        park(number, seen);
    }
    sleepers.fetch_sub(1, std::memory_order_relaxed);
}

// Reads the affinity before a pool pins the calling thread.
team::team() : tickets_(new ticket[MAX_THREADS]) {
    allowed_cores();
}

team::~team() {
    quit_ = true;
    step_.change(step_.number + 2);
    size_.change(size_.number + 1);
    for (std::thread & t : threads_) {
        t.join();
    }
}

int team::reserve(int n) {
    n = std::min(n, MAX_THREADS);
    try {
        while ((int) threads_.size() + 1 < n) {
            threads_.emplace_back(&team::serve, this, (int) threads_.size() + 1);
        }
    } catch (const std::exception &) {  // a system limit or no memory: continue with fewer threads
    }
    return std::min(n, (int) threads_.size() + 1);
}

bool team::run(job & work, int n_threads) {
    job_ = &work;
    ++job_number_;
    stop_ = false;
    const uint32_t first = step_.number + 1;
    for (int i = 0; i < n_threads; ++i) {
        tickets_[i].taken_at.store(first - 2, std::memory_order_relaxed);
    }
    if (n_threads != n_threads_) {
        n_threads_ = n_threads;
        size_.change(size_.number + 1);
    }
    tickets_[0].entered = job_number_;
    timeslice::mine().observe();
    callers_core_.store(current_core(), std::memory_order_relaxed);
    work.enter(0);
    const job::step kind = work.advance();
    if (kind == job::step::end) {
        return true;
    }
    publish(first, kind);
    bool patient = true;
    for (uint32_t step = first; step % 2 == 1; step = step_.number.load(std::memory_order_acquire)) {
        if (work.should_stop()) {
            stop_ = true;
        }
        take_part(0, step, patient);
    }
    timeslice::mine().has_left = false;  // a ticket of another job may have called us
    return !stop_;
}

void team::serve(int thread) {
    bool patient = true;
    while (!quit_) {
        // The order matters: n_threads_ is at least as new as the step, and tickets of an older step cannot be taken.
        const uint32_t size = size_.number.load(std::memory_order_acquire);
        const uint32_t step = step_.number.load(std::memory_order_acquire);
        const bool takes_part = thread < n_threads_;
        if (takes_part && step % 2 == 1) {
            take_part(thread, step, patient);
        } else if (!quit_) {  // quit_ is set before the numbers change for the last time
            takes_part ? step_.wait(step, IDLE_SPIN_NS) : size_.wait(size, 0);
        }
    }
}

// A thread that has just taken another thread's ticket does not wait for that thread at the next step.
void team::take_part(int thread, uint32_t step, bool & patient) {
    timeslice::mine().yield_if_spent();
    if (take(thread, thread, step)) {
        return;
    }
    if (patient && step_.changes(step, PATIENCE_NS)) {
        return;
    }
    const int n = n_threads_.load(std::memory_order_relaxed);
    for (int i = 1; i < n && !for_owners_.load(std::memory_order_relaxed); ++i) {
        if (take(thread, (thread + i) % n, step)) {
            patient = false;
            return;
        }
    }
    patient = true;
    step_.wait(step, STEP_SPIN_NS);
}

// A step, and so its job, cannot end before all its tickets are taken: so read members of the job only after taking
// one.
bool team::take(int thread, int wanted, uint32_t step) {
    uint32_t before = step - 2;
    if (!tickets_[wanted].taken_at.compare_exchange_strong(before, step, std::memory_order_acq_rel)) {
        return false;
    }
    if (tickets_[thread].entered != job_number_) {
        tickets_[thread].entered = job_number_;
        timeslice & slice = timeslice::mine();
        slice.observe();
        slice.keep_apart(thread, n_threads_, callers_core_);
        job_->enter(thread);
    }
    compute(wanted, step);
    return true;
}

// A ticket that left work to the others continues when its thread has its core again.
void team::compute(int ticket, uint32_t step) {
    timeslice & slice = timeslice::mine();
    do {
        slice.has_left = false;
        job_->compute(ticket);
        if ((uint32_t) open_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            return finish(step);
        }
        if (!slice.has_left) {
            return;
        }
        slice.yield_if_spent();
    } while (rejoin(step));
}

// Reopens a ticket, unless the step has ended.
bool team::rejoin(uint32_t step) {
    uint64_t open = open_.load(std::memory_order_relaxed);
    while (open >> 32 == step && (uint32_t) open > 0) {
        if (open_.compare_exchange_weak(open, open + 1, std::memory_order_acq_rel)) {
            return true;
        }
    }
    return false;
}

void team::finish(uint32_t step) {
    const job::step kind = stop_ ? job::step::end : job_->advance();
    publish(kind == job::step::end ? step + 1 : step + 2, kind);
}

void team::publish(uint32_t step, job::step kind) {
    for_owners_.store(kind == job::step::owners, std::memory_order_relaxed);
    open_.store((uint64_t) step << 32 | (uint32_t) n_threads_.load(std::memory_order_relaxed),
                std::memory_order_relaxed);
    step_.change(step);
}

void team::barrier() {
    const uint32_t generation = gate_.number.load(std::memory_order_acquire);
    if (at_gate_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads_.load(std::memory_order_relaxed)) {
        at_gate_.store(0, std::memory_order_relaxed);
        gate_.change(generation + 1);
    } else {
        gate_.wait(generation, STEP_SPIN_NS);
    }
}

// --- the teams of this process ---------------------------------------------------------------------------------------

namespace {

struct idle_teams {
    std::mutex mutex;
    std::vector<team *> teams;

    ~idle_teams() {
        for (team * t : teams) {
            delete t;
        }
    }
};

// A fork does not copy threads, so the child process starts with new teams. The destructor ends idle threads before the
// library is unloaded; on Windows they have ended by then.
struct process_teams {
    idle_teams * idle = new idle_teams;

    process_teams() {
#ifndef _WIN32
        pthread_atfork(nullptr, nullptr, [] { instance().idle = new idle_teams; });
#endif
    }

    ~process_teams() {
#ifndef _WIN32
        delete std::exchange(idle, new idle_teams);  // other threads may still compute graphs
#endif
    }

    static process_teams & instance() {
        static process_teams p;
        return p;
    }
};

}  // namespace

team * team::borrow() {
    idle_teams & all = *process_teams::instance().idle;
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.teams.empty()) {
        return new team;
    }
    team * last = all.teams.back();
    all.teams.pop_back();
    return last;
}

void team::give_back(team * idle) {
    idle_teams & all = *process_teams::instance().idle;
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.teams.push_back(idle);
}

}  // namespace eagle
