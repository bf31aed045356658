// Threads that compute the steps of a job together, on a computer whose cores they do not own.
//
// A step is cut into tickets. Each thread takes the ticket of its own number first, and then those that nobody has
// taken: a thread that the system has put aside holds up the ticket it has begun, not a share of every step. Whoever
// finishes the last ticket prepares the next step. The others spin for some microseconds, then sleep.
#pragma once

#include <stdint.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace eagle {

// What a team computes. A ticket has the same result whichever thread computes it.
class job {
  public:
    enum class step { shared, owners, end };  // owners: tickets meet at barriers, so each thread takes its own alone

    virtual ~job() = default;
    // Prepares the next step that is worth sharing, after computing those before it that are not. One thread at a time.
    virtual step advance() = 0;
    // Computes one ticket of [0, n_threads) of the present step.
    virtual void compute(int ticket) = 0;
    // Called once by each thread, before its first ticket.
    virtual void enter(int thread) = 0;
    // Called between steps by the thread that called run(); true ends the job with the present step.
    virtual bool should_stop() = 0;
};

class team {
  public:
    static constexpr int MAX_THREADS = 512;

    team();
    ~team();
    team(const team &) = delete;
    team & operator=(const team &) = delete;

    // Starts threads until there are n, the caller among them. Returns how many there are: the system may refuse some.
    int reserve(int n);

    // Computes the job by n_threads, the caller among them; at most what reserve() returned. False if should_stop()
    // ended it.
    bool run(job & work, int n_threads);

    // For tickets of a step for owners: returns when all of them have called it.
    void barrier();

    // An idle team of this process, with its threads.
    static team * borrow();
    static void give_back(team * idle);

  private:
    struct alignas(64) ticket {
        std::atomic<uint32_t> taken_at{0};  // the step that it was last taken for
        uint32_t entered = 0;               // the job that the thread of this number has entered
    };

    // Threads wait until its number changes.
    struct alignas(64) event {
        std::atomic<uint32_t> number{0};
        std::atomic<int> sleepers{0};

        void change(uint32_t value);
        bool changes(uint32_t seen, int64_t spin_ns) const;  // within that time
        void wait(uint32_t seen, int64_t spin_ns);
    };

    void serve(int thread);
    void take_part(int thread, uint32_t step, bool & patient);
    bool take(int thread, int wanted, uint32_t step);
    bool rejoin(uint32_t step);
    void compute(int ticket, uint32_t step);
    void finish(uint32_t step);
    void publish(uint32_t step, job::step kind);

    event step_;                                 // odd while a job runs: each of its steps
    event size_;                                 // changes with n_threads_
    event gate_;                                 // generations of barrier()
    alignas(64) std::atomic<uint64_t> open_{0};  // the present step, and how many of its tickets are not finished
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
