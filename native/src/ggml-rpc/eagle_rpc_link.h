// A client's connection to an RPC server.
//
// Upstream aborts the process when a server dies. Here the connection is marked as lost instead: reads from the server
// return zeros, graphs fail, and callers that wait for a result check lost_server().
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

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

// Requests up to this size in bytes are queued, because they are copies: the caller need not wait until they are sent.
constexpr size_t EAGLE_SMALL_MESSAGE = 64 << 10;

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

// Sends a message, a small one as one packet: without a delay (TCP_NODELAY), each call sends a packet and wakes the
// receiver.
template <typename Socket>
bool eagle_send_joined(Socket & socket, const void * head, size_t n_head, const void * data, size_t n_data) {
    std::array<char, 4096> begin;
    const size_t n_first = std::min(n_data, begin.size() - n_head);
    std::memcpy(begin.data(), head, n_head);
    std::copy_n((const char *) data, n_first, begin.data() + n_head);
    return socket.send_data(begin.data(), n_head + n_first) &&
           (n_first == n_data || socket.send_data((const char *) data + n_first, n_data - n_first));
}

// Detects an unreachable peer within half a minute instead of a quarter of an hour.
void eagle_watch_peer(intptr_t socket);

// Returns a lost server of any connection of this process, null while all are connected. Valid until the thread's next
// call.
const char * eagle_rpc_any_lost();
