// Ctrl-C while a prompt is computed: heard between two operations of the graph, not at the end of a batch.
#pragma once

#include "llama-context.h"

namespace eagle {

// As long as it lives, with may_stop, SIGINT ends what the context computes on the CPU; the program's own handler has
// it afterwards. Nothing changes where this thread did not ask for it (eagle_hear_interrupts), where the program leaves
// SIGINT to the system or ignores it, and on Windows. The caller's own abort callback goes on being asked.
class Interruptible {
  public:
    Interruptible(llama_context & ctx, bool may_stop);
    ~Interruptible();
    Interruptible(const Interruptible &) = delete;
    Interruptible & operator=(const Interruptible &) = delete;

  private:
    llama_context & ctx_;
    ggml_abort_callback callback_;  // the caller's
    void * data_;
    bool hears_;

    static bool is_due(void * self);
};

}  // namespace eagle
