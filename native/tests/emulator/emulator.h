// Runs CUDA kernels on the CPU: blocks one after the other, and the threads of a block one after the other until they
// wait for each other. Both orders are random, so that race conditions give different results in each run.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulator {

#ifndef EMULATOR_WARP_SIZE
#define EMULATOR_WARP_SIZE 32
#endif
constexpr int WARP_SIZE = EMULATOR_WARP_SIZE;  // 64 on AMD's GPUs before RDNA

void launch(dim3 grid, dim3 block, const std::function<void()> & kernel);

// Indexes of the current thread.
extern dim3 grid_dim, block_dim, block_index, thread_index;

// Waits for all threads of the block that have not finished.
void synchronize_block();

// Returns the value that thread `lane ^ mask` of the same warp passed to the same call.
float shuffle_xor(float value, int mask);

// Simulated memory transactions: the writes of a warp's threads by one instruction form a request, which consists of
// the 32-byte sectors that it touches.
struct Writes {
    int64_t n_requests, n_sectors;
};

// Starts counting writes of floats into memory from `begin` on, by kernels compiled with instrumentation
// (CMakeLists.txt).
void watch_writes(const void * begin, size_t n_bytes);
Writes watched_writes();

}  // namespace emulator
