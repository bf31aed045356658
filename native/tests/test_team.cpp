// Tests a team of threads: every ticket of every step is computed once, steps are in order, no thread sleeps forever.
// Includes suspended threads, barriers, stopped jobs, several teams at a time, and a fork.
//
//     test_team [STEPS]     steps of each stress run; 10000000 / 16 for a thorough test
//
// The test compiles the team itself, so that it also runs under the thread sanitizer:
//     c++ -std=c++17 -O1 -g -fsanitize=thread -I native/src/ggml-cpu/threads native/tests/test_team.cpp -o test_team
#include <cstdio>
#include <cstdlib>
#include <random>

#include "eagle_cores.cpp"
#include "eagle_parking.cpp"
#include "eagle_team.cpp"
#include "eagle_timeslice.cpp"

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace {

void require(bool condition, const char * what) {
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        abort();
    }
}

using generator = std::minstd_rand;

// Usually returns at once; occasionally takes as long as a preemption.
void delay(generator & random) {
    const unsigned dice = random() % 4096;
    if (dice == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    } else if (dice < 64) {
        std::this_thread::yield();
    } else {
        for (unsigned i = 0; i < dice % 32; ++i) {
            eagle::relax();
        }
    }
}

// Counts its calls.
class counting_job final : public eagle::job {
  public:
    counting_job(eagle::team & members, int n_threads, int64_t n_steps, unsigned seed)
        : members_(members), n_(n_threads), n_steps_(n_steps), seed_(seed), done_(n_threads) {}

    step advance() override {
        for (std::atomic<int> & d : done_) {
            require(step_ == 0 || d.load(std::memory_order_relaxed) == 1, "every ticket is computed once");
            d.store(0, std::memory_order_relaxed);
        }
        at_barrier_.store(0, std::memory_order_relaxed);
        if (step_ == n_steps_) {
            return step::end;
        }
        plain_ = ++step_;  // not atomic, because the team orders the accesses
        owners_ = (step_ * 7 + seed_) % 5 == 0;
        return owners_ ? step::owners : step::shared;
    }

    void compute(int ticket) override {
        require(plain_ == step_, "a ticket sees what was prepared");
        generator random((unsigned) (seed_ + step_ * 31 + ticket));
        delay(random);
        if (owners_) {
            at_barrier_.fetch_add(1, std::memory_order_relaxed);
            members_.barrier();
            require(at_barrier_.load(std::memory_order_relaxed) == n_, "a barrier waits for all");
            members_.barrier();
        }
        done_[ticket].fetch_add(1, std::memory_order_relaxed);
    }

    void enter(int thread) override { require(thread >= 0 && thread < n_, "threads of the job enter"); }
    bool should_stop() override { return stop_at >= 0 && calls_++ >= stop_at; }

    int64_t steps() const { return step_; }
    int64_t stop_at = -1;

  private:
    eagle::team & members_;
    int n_;
    int64_t n_steps_, step_ = 0, plain_ = 0, calls_ = 0;
    unsigned seed_;
    bool owners_ = false;
    std::atomic<int> at_barrier_{0};
    std::vector<std::atomic<int>> done_;
};

void every_ticket_once(eagle::team & members, int n_threads, int64_t n_steps, unsigned seed) {
    require(members.reserve(n_threads) == n_threads, "threads are there");
    counting_job work(members, n_threads, n_steps, seed);
    require(members.run(work, n_threads), "a job ends by itself");
    require(work.steps() == n_steps, "all steps are computed");
}

void any_number_of_threads(int64_t n_steps) {
    eagle::team members;
    for (const int n : {1, 2, 3, 16, 2, 5, 1, 8, 4}) {
        every_ticket_once(members, n, n_steps, (unsigned) n);
    }
}

// Pauses between jobs, so that threads fall asleep or nearly do.
void many_short_jobs(int n_jobs) {
    eagle::team members;
    generator random(1);
    for (int i = 0; i < n_jobs; ++i) {
        every_ticket_once(members, 1 + (int) (random() % 4), random() % 20, (unsigned) i);
        if (i % 8 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        }
    }
}

void a_job_is_stopped() {
    eagle::team members;
    members.reserve(3);
    for (int64_t after : {0, 1, 100}) {
        counting_job work(members, 3, INT64_MAX, 7);
        work.stop_at = after;
        require(!members.run(work, 3), "a stopped job says so");
        require(work.steps() >= 1, "its present step is computed");
    }
    every_ticket_once(members, 3, 100, 1);
}

void several_teams(int64_t n_steps) {
    std::vector<std::thread> callers;
    for (unsigned caller = 0; caller < 4; ++caller) {
        callers.emplace_back([caller, n_steps] {
            for (int i = 0; i < 4; ++i) {
                eagle::team * members = eagle::team::borrow();
                every_ticket_once(*members, 3, n_steps / 16, caller);
                eagle::team::give_back(members);
            }
        });
    }
    for (std::thread & caller : callers) {
        caller.join();
    }
}

// If a ticket leaves early, the others finish its work, and it rejoins while there is work left.
class leaving_job final : public eagle::job {
  public:
    static constexpr int UNITS = 64, STEPS = 2000;

    step advance() override {
        for (std::atomic<int> & t : taken_) {
            require(step_ == 0 || t.load(std::memory_order_relaxed) == 1, "every unit is computed once");
            t.store(0, std::memory_order_relaxed);
        }
        next_ = 0;
        leavers_ = 0;
        return step_++ == STEPS ? step::end : step::shared;
    }

    void compute(int ticket) override {
        generator random((unsigned) (step_ * 31 + ticket));
        for (int unit = next_++; unit < UNITS; unit = next_++) {
            taken_[unit].fetch_add(1, std::memory_order_relaxed);
            if (random() % 16 == 0 && leavers_.fetch_add(1) < 2) {
                eagle::timeslice::mine().has_left = true;
                return;
            }
        }
    }

    void enter(int) override {}
    bool should_stop() override { return false; }

  private:
    int64_t step_ = 0;
    std::atomic<int> next_{0}, leavers_{0}, taken_[UNITS] = {};
};

void tickets_may_leave() {
    eagle::team members;
    require(members.reserve(3) == 3, "threads are there");
    leaving_job work;
    require(members.run(work, 3), "a job ends by itself");
}

void a_forked_process_has_threads_of_its_own() {
#if !defined(_WIN32) && !defined(__SANITIZE_THREAD__)
    eagle::team * parents = eagle::team::borrow();
    every_ticket_once(*parents, 2, 100, 1);
    eagle::team::give_back(parents);
    const pid_t child = fork();
    if (child == 0) {
        eagle::team * members = eagle::team::borrow();
        every_ticket_once(*members, 2, 100, 2);
        eagle::team::give_back(members);
        _exit(members == parents ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked process computes with threads of its own");
#endif
}

}  // namespace

int main(int argc, char ** argv) {
    const int64_t n_steps = argc > 1 ? atoll(argv[1]) : 5'000;
    any_number_of_threads(n_steps);
    many_short_jobs(2000);
    a_job_is_stopped();
    several_teams(n_steps);
    tickets_may_leave();
    a_forked_process_has_threads_of_its_own();
    printf("ok\n");
    return 0;
}
