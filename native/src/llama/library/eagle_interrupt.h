// Lets Ctrl-C interrupt a prompt between two operations of the graph, instead of at the end of a batch.
#pragma once

#include "eagle_progress.h"
#include "llama-context.h"

namespace eagle {

// While the object exists and may_stop is true, SIGINT aborts the context's computation on the CPU; the program's own
// handler runs afterwards. No effect if this thread is not interruptible (eagle_set_interruptible), if the program has
// no SIGINT handler or ignores the signal, and on Windows. The caller's own abort callback is still called. progress
// counts the operations; null: nobody waits for it.
class Interruptible {
  public:
    Interruptible(llama_context & ctx, bool may_stop, Progress * progress);
    ~Interruptible();
    Interruptible(const Interruptible &) = delete;
    Interruptible & operator=(const Interruptible &) = delete;

  private:
    llama_context & ctx_;
    ggml_abort_callback callback_;  // the caller's
    void * data_;
    Progress * progress_;
    bool has_handler_;

    static bool is_due(void * self);
};

}  // namespace eagle
