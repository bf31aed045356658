// Lets threads sleep until a number changes: futex on Linux, WaitOnAddress on Windows, otherwise a condition variable.
#pragma once

#include <stdint.h>

#include <atomic>
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
#include <immintrin.h>
#endif

namespace eagle {

// Blocks while `word` is `expected`. May return early.
void park(std::atomic<uint32_t> & word, uint32_t expected);

// Wakes all threads parked on `word`. Change its value first.
void unpark_all(std::atomic<uint32_t> & word);

// Hints to the core that this thread spins.
inline void relax() {
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

}  // namespace eagle
