// Runs CUDA kernels on the CPU: block after block, and within a block thread after thread, both in random order, each
// until it has to wait for others. What a kernel leaves to chance differs from run to run.

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

// Of the thread that runs now.
extern dim3 grid_dim, block_dim, block_index, thread_index;

// Waits for all threads of the block that have not ended.
void synchronize_block();

// The value that thread `lane ^ mask` of the same warp gave in the same call.
float shuffle_xor(float value, int mask);

// How a GPU would write: what the threads of a warp write by one instruction at once is a request, of as many sectors
// of 32 bytes as it touches.
struct Writes {
    int64_t n_requests, n_sectors;
};

// Starts to count writes of floats into memory from `begin` on, by kernels that are compiled for it (CMakeLists.txt).
void watch_writes(const void * begin, size_t n_bytes);
Writes watched_writes();

}  // namespace emulator
