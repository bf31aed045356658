#include "eagle_parking.h"

#if defined(__linux__)

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace eagle {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads the number itself");

void park(std::atomic<uint32_t> & word, uint32_t expected) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void unpark_all(std::atomic<uint32_t> & word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace eagle

#elif defined(_WIN32)

#ifndef NOMINMAX
#define NOMINMAX
#endif
#if !defined(_WIN32_WINNT) || _WIN32_WINNT < 0x0602  // WaitOnAddress came with Windows 8
#undef _WIN32_WINNT
#define _WIN32_WINNT 0x0602
#endif
#include <windows.h>

namespace eagle {

void park(std::atomic<uint32_t> & word, uint32_t expected) {
    WaitOnAddress(&word, &expected, sizeof(expected), INFINITE);
}

void unpark_all(std::atomic<uint32_t> & word) {
    WakeByAddressAll(&word);
}

}  // namespace eagle

#else

#include <pthread.h>

#include <condition_variable>
#include <mutex>

namespace eagle {

namespace {

// One condition variable serves all words; waking for another word is an early return. It is never destroyed, because
// threads may wait when the process ends. A forked process has no waiting threads and gets a new one.
struct parking_lot {
    std::mutex mutex;
    std::condition_variable changed;

    static parking_lot *& current() {
        static parking_lot * lot = [] {
            pthread_atfork(nullptr, nullptr, [] { current() = new parking_lot; });
            return new parking_lot;
        }();
        return lot;
    }
};

}  // namespace

void park(std::atomic<uint32_t> & word, uint32_t expected) {
    parking_lot & lot = *parking_lot::current();
    std::unique_lock<std::mutex> lock(lot.mutex);
    if (word.load() == expected) {
        lot.changed.wait(lock);
    }
}

void unpark_all(std::atomic<uint32_t> &) {
    parking_lot & lot = *parking_lot::current();
    // Taking the mutex once waits for a thread that has compared the value but does not wait yet.
    {
        const std::lock_guard<std::mutex> lock(lot.mutex);
    }
    lot.changed.notify_all();
}

}  // namespace eagle

#endif
