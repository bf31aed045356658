// Team of threads that compute the steps of a job together, on cores that other programs may use too.
//
// A step is split into tickets. Each thread takes the ticket of its own number first, then tickets that are still free.
// So a thread that the system has suspended delays the ticket that it has started, but not a share of every step. The
// thread that finishes the last ticket prepares the next step. The others spin for some microseconds, then sleep.
#pragma once

#include <stdint.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace eagle {

// Work of a team. The result of a ticket does not depend on the thread that computes it.
class job {
  public:
    enum class step { shared, owners, end };  // owners: tickets wait at barriers, so each thread takes only its own

    virtual ~job() = default;
    // Computes steps that are not worth sharing, and prepares the next one that is. One thread at a time calls it.
    virtual step advance() = 0;
    // Computes ticket 0 .. n_threads - 1 of the current step.
    virtual void compute(int ticket) = 0;
    // Each thread calls it once, before its first ticket.
    virtual void enter(int thread) = 0;
    // The thread that called run() calls it between steps; true ends the job with the current step.
    virtual bool should_stop() = 0;
};

class team {
  public:
    static constexpr int MAX_THREADS = 512;

    team();
    ~team();
    team(const team &) = delete;
    team & operator=(const team &) = delete;

    // Starts threads until there are n, including the caller. Returns their number; the system may refuse some.
    int reserve(int n);

    // Computes the job with n_threads, including the caller; at most the number that reserve() has returned. Returns
    // false if should_stop() ended it.
    bool run(job & work, int n_threads);

    // For tickets of an `owners` step: returns when all of them have called it.
    void barrier();

    // Borrow an idle team of this process, with its threads, and give it back.
    static team * borrow();
    static void give_back(team * idle);

  private:
    struct alignas(64) ticket {
        std::atomic<uint32_t> taken_at{0};  // step in which it was taken last
        uint32_t entered = 0;               // job that the thread of this number has entered
    };

    // Lets threads wait until a number changes.
    struct alignas(64) event {
        std::atomic<uint32_t> number{0};
        std::atomic<int> sleepers{0};

        void change(uint32_t value);
        bool changes(uint32_t seen, int64_t spin_ns) const;  // waits up to spin_ns
        void wait(uint32_t seen, int64_t spin_ns);
    };

    void serve(int thread);
    void take_part(int thread, uint32_t step, bool & patient);
    bool take(int thread, int wanted, uint32_t step);
    bool rejoin(uint32_t step);
    void compute(int ticket, uint32_t step);
    void finish(uint32_t step);
    void publish(uint32_t step, job::step kind);

    event step_;                                 // number of the step; odd while a job runs
    event size_;                                 // changes with n_threads_
    event gate_;                                 // generation of barrier()
    alignas(64) std::atomic<uint64_t> open_{0};  // current step (upper half) and number of its unfinished tickets
    alignas(64) std::atomic<int> at_gate_{0};
    alignas(64) std::atomic<int> n_threads_{0};
    std::atomic<int> callers_core_{0};
    std::atomic<bool> for_owners_{false};
    std::atomic<bool> stop_{false};
    std::atomic<bool> quit_{false};
    job * job_ = nullptr;
    uint32_t job_number_ = 0;
    std::unique_ptr<ticket[]> tickets_;
    std::vector<std::thread> threads_;
};

}  // namespace eagle
