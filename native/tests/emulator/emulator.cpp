#include "emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace emulator {

dim3 grid_dim, block_dim, block_index, thread_index;

namespace {

constexpr size_t STACK_BYTES = 64 << 10;

enum class State { READY, IN_WARP, IN_BLOCK, ENDED };

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    jmp_buf jump;  // used after the first switch: switching contexts costs two system calls, a jump none
    bool started = false;
    State state;
    dim3 index;
    float given[2];  // values passed to shuffles, alternately
    int n_shuffles;
};

std::vector<std::unique_ptr<Thread>> threads;  // reused by all blocks
std::vector<int> order;                        // of the block's threads
int n_left;                                    // threads of the order before its end is reached
size_t position;
Thread * running;
jmp_buf end_of_block;
const std::function<void()> * body;
std::mt19937 rng(1);

// Resumes threads [first, last) if all unfinished ones wait for the same event.
void release(int first, int last, State state) {
    for (int i = first; i < last; i++) {
        if (threads[i]->state != state && threads[i]->state != State::ENDED) {
            return;
        }
    }
    for (int i = first; i < last; i++) {
        if (threads[i]->state == state) {
            threads[i]->state = State::READY;
        }
    }
}

void release_all() {
    const int n_threads = (int) order.size();
    for (int i = 0; i < n_threads; i += WARP_SIZE) {
        release(i, std::min(i + WARP_SIZE, n_threads), State::IN_WARP);
    }
    release(0, n_threads, State::IN_BLOCK);
}

Thread * next_of_order() {
    while (n_left > 0) {
        n_left--;
        Thread * t = threads[order[position]].get();
        position = position + 1 < order.size() ? position + 1 : 0;
        if (t->state == State::READY) {
            return t;
        }
    }
    return nullptr;
}

// Returns null if all threads have finished or wait for each other.
Thread * next_ready() {
    if (Thread * t = next_of_order()) {
        return t;
    }
    release_all();
    n_left = (int) order.size();
    position = rng() % order.size();
    if (rng() % 2 == 0) {
        std::reverse(order.begin(), order.end());
    }
    return next_of_order();
}

// Runs the next thread, or returns to run_block.
[[noreturn]] void run_next() {
    running = next_ready();
    if (running == nullptr) {
        _longjmp(end_of_block, 1);
    }
    thread_index = running->index;
    if (running->started) {
        _longjmp(running->jump, 1);
    }
    running->started = true;
    setcontext(&running->context);
    abort();
}

void wait(State state) {
    Thread * self = running;
    self->state = state;
    if (_setjmp(self->jump) == 0) {
        run_next();
    }
}

void run_body() {
    while (true) {
        (*body)();
        wait(State::ENDED);  // until the next block
    }
}

void start(int i, dim3 block) {
    if (i == (int) threads.size()) {
        threads.push_back(std::make_unique<Thread>());
        Thread & t = *threads[i];
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.get();
        t.context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&t.context, run_body, 0);
    }
    Thread & t = *threads[i];
    t.state = State::READY;
    t.n_shuffles = 0;
    t.index = dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
}

int thread_in_block() {
    const dim3 at = running->index;
    return (int) (at.x + block_dim.x * (at.y + block_dim.y * at.z));
}

// --- writes -------------------------------------------------------------------------------------------------------

constexpr uintptr_t SECTOR_BYTES = 32;

// An instruction with a thread or a warp of the current block, and the number of its execution.
using Instruction = const void *;
std::map<std::pair<Instruction, int>, int> times;
std::map<std::tuple<Instruction, int, int>, std::set<uintptr_t>> requests;
uintptr_t watched_begin, watched_end;
Writes writes;

void count_write(uintptr_t address, Instruction instruction) {
    if (address < watched_begin || address >= watched_end) {
        return;
    }
    const int thread = thread_in_block();
    const int time = times[{instruction, thread}]++;
    requests[{instruction, thread / WARP_SIZE, time}].insert(address / SECTOR_BYTES);
}

void count_requests_of_block() {
    for (const auto & [_, sectors] : requests) {
        writes.n_requests++;
        writes.n_sectors += (int64_t) sectors.size();
    }
    requests.clear();
    times.clear();
}

// --- blocks -------------------------------------------------------------------------------------------------------

void run_block(dim3 block) {
    order.resize(block.x * block.y * block.z);
    std::iota(order.begin(), order.end(), 0);
    for (const int i : order) {
        start(i, block);
    }
    std::shuffle(order.begin(), order.end(), rng);
    n_left = (int) order.size();
    position = 0;
    if (_setjmp(end_of_block) == 0) {
        run_next();
    }
    const auto ended = [](int i) { return threads[i]->state == State::ENDED; };
    if (!std::all_of(order.begin(), order.end(), ended)) {
        fprintf(stderr, "threads of a block wait for one another for ever\n");
        abort();
    }
}

}  // namespace

void launch(dim3 grid, dim3 block, const std::function<void()> & kernel) {
    std::vector<unsigned> order(grid.x * grid.y * grid.z);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), rng);
    grid_dim = grid;
    block_dim = block;
    body = &kernel;
    for (const unsigned i : order) {
        block_index = dim3(i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y));
        run_block(block);
        count_requests_of_block();
    }
}

void synchronize_block() {
    wait(State::IN_BLOCK);
}

float shuffle_xor(float value, int mask) {
    const int which = running->n_shuffles++ % 2;  // no thread passes a second value before all have read the first
    running->given[which] = value;
    wait(State::IN_WARP);
    return threads[thread_in_block() ^ mask]->given[which];
}

void watch_writes(const void * begin, size_t n_bytes) {
    watched_begin = (uintptr_t) begin;
    watched_end = watched_begin + n_bytes;
    writes = {};
}

Writes watched_writes() {
    return writes;
}

}  // namespace emulator

// Functions that the compiler calls at every access with -fsanitize=thread. The sanitizer itself is not linked.
#define HOOK extern "C" __attribute__((visibility("hidden"), used)) void

HOOK __tsan_init() {}
HOOK __tsan_func_entry(void *) {}
HOOK __tsan_func_exit() {}
HOOK __tsan_read1(void *) {}
HOOK __tsan_read2(void *) {}
HOOK __tsan_read4(void *) {}
HOOK __tsan_read8(void *) {}
HOOK __tsan_read16(void *) {}
HOOK __tsan_read_range(void *, size_t) {}
HOOK __tsan_write_range(void *, size_t) {}
HOOK __tsan_write1(void *) {}
HOOK __tsan_write2(void *) {}
HOOK __tsan_write8(void *) {}
HOOK __tsan_write16(void *) {}

HOOK __tsan_write4(void * address) {
    emulator::count_write((uintptr_t) address, __builtin_return_address(0));
}
