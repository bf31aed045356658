// Tracks how much of its time slice a thread has used, on a core that another program uses too.
//
// The scheduler preempts such a thread in the middle of a piece of work, and then all threads wait for that piece
// during a time slice of the other program. So the thread yields shortly before that, between two pieces.
#pragma once

#include <stdint.h>

namespace eagle {

class timeslice {
  public:
    // Returns the object of the calling thread.
    static timeslice & mine();

    // Checks if the thread was preempted since the previous graph. Call it for each graph.
    void observe();

    // Pins a worker to a core of its own while its core is contended, if there are as many threads as cores. The
    // scheduler would as readily place it on the core of the calling thread as next to the other program.
    void keep_apart(int thread, int n_threads, int callers_core);

    // Returns true if the thread should yield before the next piece.
    bool is_spent() { return contended_ && measure(); }

    // Yields if the slice is spent.
    void yield_if_spent();

    bool has_left = false;  // the thread left its ticket to the others because its slice was spent

  private:
    bool measure();

    bool contended_ = false;
    int core_ = -1;                       // chosen by keep_apart()
    long switches_ = 0;                   // involuntary context switches of the thread
    int64_t last_switch_ns_ = 0;          // time when observe() saw the last one
    int64_t begin_ns_ = 0, seen_ns_ = 0;  // start of the slice; time of the previous piece
};

}  // namespace eagle
