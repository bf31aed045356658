// Puts threads to sleep until a number changes: futex on Linux, WaitOnAddress on Windows, a condition variable
// elsewhere.
#pragma once

#include <stdint.h>

#include <atomic>
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
#include <immintrin.h>
#endif

namespace eagle {

// Blocks while `word` is `expected`. May return early.
void park(std::atomic<uint32_t> & word, uint32_t expected);

// Wakes every thread that is parked on `word`. The caller has changed it before.
void unpark_all(std::atomic<uint32_t> & word);

// Tells the core that this thread spins.
inline void relax() {
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

}  // namespace eagle
