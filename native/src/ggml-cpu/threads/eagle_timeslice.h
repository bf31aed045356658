// How much of its time slice a thread has used, on a core that another program wants too.
//
// The scheduler takes such a core away in the middle of a piece of work. All threads then wait for that piece, for a
// time slice of the other program. So a thread gives the core up shortly before that, between two pieces.
#pragma once

#include <stdint.h>

namespace eagle {

class timeslice {
  public:
    // That of the calling thread.
    static timeslice & mine();

    // Called for each graph: reads whether the core was taken away since the previous one.
    void observe();

    // Places a worker on a core of its own while its core is contended, if there are as many threads as cores. The
    // scheduler sees no difference between a worker next to the calling thread and one next to the other program.
    void keep_apart(int thread, int n_threads, int callers_core);

    // Whether the core should be given up before another piece begins.
    bool is_spent() { return contended_ && measure(); }

    // Gives the core up if the slice is spent.
    void yield_if_spent();

    bool has_left = false;  // whether the thread left its ticket to the others because its slice was spent

  private:
    bool measure();

    bool contended_ = false;
    int core_ = -1;                       // that keep_apart() chose
    long switches_ = 0;                   // involuntary ones, since the thread began
    int64_t last_switch_ns_ = 0;          // when observe() saw the last one
    int64_t begin_ns_ = 0, seen_ns_ = 0;  // of the slice; of the previous piece
};

}  // namespace eagle
