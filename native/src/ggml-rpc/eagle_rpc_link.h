// A client's connection to an RPC server.
//
// Upstream aborts the process when a server dies. Here the connection is lost instead: what was asked of the server
// reads as zeros, graphs fail, and callers that wait for a result check lost_server().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#ifdef _WIN32
#define EAGLE_SEND_FLAGS 0
#else
#include <sys/socket.h>
#ifdef MSG_NOSIGNAL
#define EAGLE_SEND_FLAGS MSG_NOSIGNAL  // a peer that is gone is an error, not the end of the process
#else
#define EAGLE_SEND_FLAGS 0
#endif
#endif

class eagle_rpc_link {
  public:
    void opened(const std::string & server, bool worked);

    // After each message: whether it was sent, and answered where it has an output. What is lost reads as zeros.
    void answered(bool worked, void * output, size_t size);
    bool is_lost() const { return lost_; }
    const char * lost_server() const { return lost_ ? server_.c_str() : nullptr; }  // null while it is there

    // For values that ggml asserts on: those of a lost server are never used.
    void * base_or_any(uint64_t base) const;
    size_t alignment_or_any(size_t alignment) const;

    // Held while a graph is compared and its message queued, so that no buffer is freed in between.
    std::unique_lock<std::mutex> lock_graphs() { return std::unique_lock<std::mutex>(graphs_mutex_); }

    // Return whether the server keeps the graph of this name for this device. If not, it does from now on.
    bool keeps(uint32_t device, uint64_t uid);

    // A buffer is freed: the server drops its graphs then.
    void forget_graphs() { graphs_.clear(); }

  private:
    std::string server_;
    std::atomic<bool> lost_ = false;
    std::mutex graphs_mutex_;
    std::map<uint32_t, uint64_t> graphs_;  // the last one's name, by device
};

// A peer whose machine or cable is gone is noticed within half a minute instead of a quarter of an hour.
void eagle_watch_peer(intptr_t socket);
