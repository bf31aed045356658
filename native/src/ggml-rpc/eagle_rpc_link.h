// A client's connection to an RPC server.
//
// Upstream aborts the process when a server dies. Here the connection is marked as lost instead: reads from the server
// return zeros, graphs fail, and callers that wait for a result check lost_server().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ggml-backend.h"

#ifdef _WIN32
#define EAGLE_SEND_FLAGS 0
#else
#include <sys/socket.h>
#ifdef MSG_NOSIGNAL
#define EAGLE_SEND_FLAGS MSG_NOSIGNAL  // a disconnected peer is an error and must not end the process
#else
#define EAGLE_SEND_FLAGS 0
#endif
#endif

class eagle_rpc_link {
  public:
    eagle_rpc_link();
    ~eagle_rpc_link();

    // Call it on the thread that has connected.
    void opened(const std::string & server, bool worked);

    // The server's greeting, see eagle_rpc_greeting().
    void greeted(uint8_t greeting) { is_exact_ = greeting == EXACT; }
    bool is_exact() const { return is_exact_; }

    // Call it before a message with an output is queued.
    void expect() { n_expected_++; }
    bool expects_answers() const { return n_expected_ > 0; }

    // Call it after each message. worked: the message was sent, and answered if it has an output. A lost output is
    // zeroed.
    void answered(bool worked, void * output, size_t size);
    bool is_lost() const { return lost_; }
    const char * lost_server();  // null while connected; also notices a server that ended since its last message

    // Return the value, or any valid one for a lost server, because ggml asserts on them; the latter are never used.
    void * base_or_any(uint64_t base) const;
    size_t alignment_or_any(size_t alignment) const;

    // Hold it while a graph is compared and its message queued, so that no buffer is freed in between.
    std::unique_lock<std::mutex> lock_graphs() { return std::unique_lock<std::mutex>(graphs_mutex_); }

    // Returns true if the server already stores the graph `uid` for this device; otherwise records that it does from
    // now on.
    bool keeps(uint32_t device, uint64_t uid);

    // Call it when a buffer is freed, because the server then drops its graphs.
    void forget_graphs() { graphs_.clear(); }

    static constexpr uint8_t EXACT = 1;

  private:
    std::string server_;
    intptr_t socket_ = -1;
    std::atomic<bool> lost_ = false;
    std::atomic<bool> is_exact_ = false;
    std::atomic<int> n_expected_ = 0;
    std::mutex graphs_mutex_;
    std::map<uint32_t, uint64_t> graphs_;  // by device: uid of the last graph
};

// Returns what a server with these backends adds to its HELLO: 1 if rows of a batch have the bits of single rows, 0
// otherwise, as upstream's servers do.
uint8_t eagle_rpc_greeting(const std::vector<ggml_backend_t> & backends);

// Detects an unreachable peer within half a minute instead of a quarter of an hour.
void eagle_watch_peer(intptr_t socket);

// Returns a lost server of any connection of this process, null while all are connected. Valid until the thread's next
// call.
const char * eagle_rpc_any_lost();
