// What a client of an RPC server knows of its connection: whether it still stands, whether the server is of our build,
// and which graphs the server keeps.
//
// Upstream aborts the process when a server dies. Here the connection is lost instead: what was asked of the server
// reads as zeros, graphs fail, and whoever waits for a result asks lost_server().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

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

struct ggml_tensor;

class eagle_rpc_link {
  public:
    static constexpr uint8_t OURS = 1;        // in a server's greeting, where upstream's have 0
    static constexpr uint32_t N_GRAPHS = 32;  // kept per device by our servers; upstream's keep one

    // --- on the client ---

    void opened(const std::string & server, bool worked);
    void greeted(uint8_t extension) { ours_ = extension == OURS; }
    bool is_ours() const { return ours_; }

    // After each message: whether it was sent, and answered where it has an output. What is lost reads as zeros.
    void answered(bool worked, void * output, size_t size);
    bool is_lost() const { return lost_; }
    const char * lost_server() const { return lost_ ? server_.c_str() : nullptr; }  // null while it is there

    // For values that ggml asserts on: those of a lost server are never used.
    void * base_or_any(uint64_t base) const;
    size_t alignment_or_any(size_t alignment) const;

    // Held while a graph is placed and its message queued: places and messages have one order.
    std::unique_lock<std::mutex> lock_graphs() { return std::unique_lock<std::mutex>(graphs_mutex_); }

    // Whether the server keeps the graph of this name. Then `device` is the number to send: with the graph's place.
    bool keeps(uint32_t & device, uint64_t uid);

    // The same by what the graph is: one that is built anew in every round has a new name, and is often one of the last
    // few. `bytes` begin with the device number, which becomes the one to send; if the server does not keep the graph
    // yet, it will.
    bool keeps(uint32_t & device, uint64_t uid, uint8_t * bytes, size_t size);

    // A buffer is freed: the server drops its graphs then.
    void forget_graphs() { graphs_.clear(); }

    // --- on the server ---

    // Takes the place out of a device number.
    static uint32_t slot_of(uint32_t & device);

  private:
    struct Graph {
        uint64_t uid = 0;
        std::vector<uint8_t> bytes;  // without the device number
    };
    struct Graphs {
        std::array<Graph, N_GRAPHS> kept;
        uint32_t next = 0;  // the oldest
    };

    std::string server_;
    std::atomic<bool> lost_ = false;
    std::atomic<bool> ours_ = false;
    std::mutex graphs_mutex_;
    std::map<uint32_t, Graphs> graphs_;  // by device
};

// A peer whose machine or cable is gone is noticed within half a minute instead of a quarter of an hour.
void eagle_watch_peer(intptr_t socket);

// Between devices of one server that do not copy from each other. True.
bool eagle_copy_through_host(const ggml_tensor * src, ggml_tensor * dst);
