// Tests that a result wakes the reader of its task and no other.

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../src/llama-common/slots/eagle_result_readers.h"

namespace {

constexpr int N_READERS = 8, N_RESULTS = 50;

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

struct Results {
    std::mutex mutex;
    eagle_result_readers readers;
    int n_waiting = 0;
    std::vector<int> n_sent = std::vector<int>(2 * N_READERS), n_read = n_sent, n_woken = n_sent;

    void send(int id) {
        std::unique_lock<std::mutex> lock(mutex);
        n_sent[id]++;
        readers.notify(id);
    }

    void wait_for_readers() {
        std::unique_lock<std::mutex> lock(mutex);
        while (n_waiting < N_READERS) {
            lock.unlock();
            std::this_thread::yield();
            lock.lock();
        }
    }

    // Reads all results of two tasks, as the request of two prompts does.
    void read(int first) {
        const std::unordered_set<int> ids = {first, first + 1};
        std::unique_lock<std::mutex> lock(mutex);
        while (n_read[first] + n_read[first + 1] < N_RESULTS) {
            for (const int id : ids) {
                n_read[id] = n_sent[id];
            }
            if (n_read[first] + n_read[first + 1] < N_RESULTS) {
                n_waiting++;
                require(readers.wait_for(lock, std::chrono::seconds(60), ids) == std::cv_status::no_timeout, "woken");
                n_waiting--;
                n_woken[first]++;
            }
        }
    }
};

void a_result_wakes_its_reader_alone() {
    Results results;
    std::vector<std::thread> threads;
    for (int i = 0; i < N_READERS; i++) {
        threads.emplace_back([&results, i] { results.read(2 * i); });
    }
    results.wait_for_readers();
    for (int i = 0; i < N_RESULTS; i++) {
        results.send(i % 2);
    }
    threads[0].join();
    {
        const std::unique_lock<std::mutex> lock(results.mutex);
        for (int i = 1; i < N_READERS; i++) {
            require(results.n_woken[2 * i] == 0, "readers of other tasks sleep");
        }
    }
    for (int i = 1; i < N_READERS; i++) {
        for (int n = 0; n < N_RESULTS; n++) {
            results.send(2 * i + n % 2);
        }
        threads[i].join();
    }
}

void nobody_is_woken_without_a_result() {
    Results results;
    std::unique_lock<std::mutex> lock(results.mutex);
    require(results.readers.wait_for(lock, std::chrono::seconds(0), {1}) == std::cv_status::timeout, "it is over");
    results.readers.notify(1);  // nobody reads
}

void all_are_woken_at_the_end() {
    std::mutex mutex;
    eagle_result_readers readers;
    bool is_over = false;
    const auto wait = [&](bool for_any) {
        std::unique_lock<std::mutex> lock(mutex);
        while (!is_over && !for_any) {
            readers.wait_for(lock, std::chrono::seconds(60), {1});
        }
        readers.wait(lock, [&] { return is_over; });
    };
    std::thread one([&] { wait(false); }), any([&] { wait(true); });
    {
        const std::unique_lock<std::mutex> lock(mutex);
        is_over = true;
        readers.notify_all();
    }
    one.join();
    any.join();
}

}  // namespace

int main() {
    a_result_wakes_its_reader_alone();
    nobody_is_woken_without_a_result();
    all_are_woken_at_the_end();
    std::printf("ok\n");
    return 0;
}
