#include "eagle_interrupt.h"

#include <atomic>
#include <csignal>
#include <thread>
#include <tuple>

#include "eagle.h"

namespace {

thread_local bool is_wanted = false;

#ifdef _WIN32
bool begin_to_hear() {
    return false;
}
void cease_to_hear() {}
bool is_interrupted() {
    return false;
}
#else
std::atomic<bool> in_use{false};  // one thread at a time: the handler is the process's
volatile std::sig_atomic_t interrupted = 0;
struct sigaction before = {};

std::atomic<int> n_noting{0};

// The signal may come to any thread, and late: one that finds us gone goes on to the program's own handler.
void note(int number, siginfo_t * info, void * context) {
    n_noting++;
    if (in_use) {
        interrupted = 1;
    } else if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else {
        before.sa_handler(number);
    }
    n_noting--;
}

bool begin_to_hear() {
    if (in_use.exchange(true)) {
        return false;
    }
    const bool has_handler =
        sigaction(SIGINT, nullptr, &before) == 0 &&
        ((before.sa_flags & SA_SIGINFO) || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN));
    struct sigaction ours = {};
    ours.sa_sigaction = note;
    ours.sa_mask = before.sa_mask;
    ours.sa_flags = SA_SIGINFO | (before.sa_flags & SA_ONSTACK);
    if (has_handler && sigaction(SIGINT, &ours, nullptr) == 0) {
        return true;
    }
    in_use = false;
    return false;
}

// Raises what was noted: not before, since a callback on the way, the log's, would take it and lose it.
void cease_to_hear() {
    sigaction(SIGINT, &before, nullptr);
    in_use = false;
    while (n_noting > 0) {
        std::this_thread::yield();
    }
    if (interrupted) {
        interrupted = 0;
        raise(SIGINT);
    }
}

bool is_interrupted() {
    return interrupted != 0;
}
#endif

}  // namespace

namespace eagle {

Interruptible::Interruptible(llama_context & ctx, bool may_stop)
    : ctx_(ctx), callback_(nullptr), data_(nullptr), hears_(may_stop && is_wanted && begin_to_hear()) {
    if (hears_) {
        std::tie(callback_, data_) = ctx.eagle_abort_callback();
        ctx.set_abort_callback(is_due, this);
    }
}

Interruptible::~Interruptible() {
    if (hears_) {
        ctx_.set_abort_callback(callback_, data_);
        cease_to_hear();
    }
}

bool Interruptible::is_due(void * self) {
    const auto & ours = *(const Interruptible *) self;
    return is_interrupted() || (ours.callback_ && ours.callback_(ours.data_));
}

}  // namespace eagle

void eagle_hear_interrupts(int32_t wanted) {
    is_wanted = wanted != 0;
}
