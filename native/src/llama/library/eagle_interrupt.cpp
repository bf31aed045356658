#include "eagle_interrupt.h"

#include <atomic>
#include <csignal>
#include <thread>
#include <tuple>

#include "eagle.h"

namespace {

thread_local bool is_enabled = false;

#ifdef _WIN32
bool install_handler() {
    return false;
}
void remove_handler() {}
bool is_interrupted() {
    return false;
}
#else
std::atomic<bool> in_use{false};  // the process has one handler, so one thread at a time uses it
volatile std::sig_atomic_t interrupted = 0;
struct sigaction before = {};
std::atomic<int> n_running{0};  // handlers

// Any thread may receive the signal. If our handler has been removed meanwhile, it calls the program's own.
void handle_signal(int number, siginfo_t * info, void * context) {
    n_running++;
    if (in_use) {
        interrupted = 1;
    } else if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else {
        before.sa_handler(number);
    }
    n_running--;
}

bool install_handler() {
    if (in_use.exchange(true)) {
        return false;
    }
    const bool has_handler =
        sigaction(SIGINT, nullptr, &before) == 0 &&
        ((before.sa_flags & SA_SIGINFO) || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN));
    struct sigaction ours = {};
    ours.sa_sigaction = handle_signal;
    ours.sa_mask = before.sa_mask;
    ours.sa_flags = SA_SIGINFO | (before.sa_flags & SA_ONSTACK);
    if (has_handler && sigaction(SIGINT, &ours, nullptr) == 0) {
        return true;
    }
    in_use = false;
    return false;
}

// Raises the signal for the program's handler only now: earlier, a Python callback such as the log's would receive the
// exception and lose it.
void remove_handler() {
    sigaction(SIGINT, &before, nullptr);
    in_use = false;
    while (n_running > 0) {
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

Interruptible::Interruptible(llama_context & ctx, bool may_stop, Progress * progress)
    : ctx_(ctx),
      callback_(nullptr),
      data_(nullptr),
      progress_(progress && progress->is_wanted() ? progress : nullptr),
      has_handler_(may_stop && is_enabled && install_handler()) {
    if (has_handler_ || progress_) {
        std::tie(callback_, data_) = ctx.eagle_abort_callback();
        ctx.set_abort_callback(is_due, this);
    }
}

Interruptible::~Interruptible() {
    if (has_handler_ || progress_) {
        ctx_.set_abort_callback(callback_, data_);
    }
    if (has_handler_) {
        remove_handler();
    }
}

bool Interruptible::is_due(void * self) {
    const auto & ours = *(const Interruptible *) self;
    if (ours.progress_) {
        ours.progress_->count();
    }
    return (ours.has_handler_ && is_interrupted()) || (ours.callback_ && ours.callback_(ours.data_));
}

}  // namespace eagle

void eagle_set_interruptible(int32_t enable) {
    is_enabled = enable != 0;
}
