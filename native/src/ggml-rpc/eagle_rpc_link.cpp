#include "eagle_rpc_link.h"

#include <cerrno>
#include <cstring>
#include <set>

#include "ggml-impl.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#else
#include <netinet/in.h>
#include <netinet/tcp.h>
#endif

namespace {

constexpr uintptr_t ANY_ADDRESS = 4096;
constexpr size_t ANY_ALIGNMENT = 128;

thread_local intptr_t last_socket = -1;  // that this thread has connected

struct Links {
    std::mutex mutex;
    std::set<eagle_rpc_link *> all;
};

Links & links() {
    static Links * links = new Links;  // connections may outlive static objects
    return *links;
}

// Returns true if the peer has closed the connection, without waiting and without reading from it.
bool is_closed(intptr_t socket) {
#ifdef _WIN32
    (void) socket;
    return false;
#else
    char byte;
    const ssize_t n = socket < 0 ? 1 : recv((int) socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
#endif
}

#ifndef _WIN32
void set_option(intptr_t socket, int option, int value) {
    setsockopt((int) socket, IPPROTO_TCP, option, &value, sizeof value);
}
#endif

}  // namespace

eagle_rpc_link::eagle_rpc_link() {
    std::lock_guard<std::mutex> lock(links().mutex);
    links().all.insert(this);
}

eagle_rpc_link::~eagle_rpc_link() {
    std::lock_guard<std::mutex> lock(links().mutex);
    links().all.erase(this);
}

void eagle_rpc_link::opened(const std::string & server, bool worked) {
    std::lock_guard<std::mutex> lock(links().mutex);
    server_ = server;
    socket_ = worked ? last_socket : -1;
    answered(worked, nullptr, 0);
}

void eagle_rpc_link::answered(bool worked, void * output, size_t size) {
    n_expected_ -= output != nullptr;
    if (worked) {
        return;
    }
    if (output) {
        std::memset(output, 0, size);
    }
    if (!lost_.exchange(true)) {
        GGML_LOG_ERROR("the RPC server %s is gone, or does not speak this version of the protocol\n", server_.c_str());
    }
}

const char * eagle_rpc_link::lost_server() {
    if (!lost_ && is_closed(socket_)) {
        answered(false, nullptr, 0);
    }
    return lost_ ? server_.c_str() : nullptr;
}

void * eagle_rpc_link::base_or_any(uint64_t base) const {
    return reinterpret_cast<void *>(lost_ ? ANY_ADDRESS : (uintptr_t) base);
}

size_t eagle_rpc_link::alignment_or_any(size_t alignment) const {
    return lost_ ? ANY_ALIGNMENT : alignment;
}

bool eagle_rpc_link::keeps(uint32_t device, uint64_t uid) {
    uint64_t & last = graphs_[device];
    const bool is_last = uid != 0 && last == uid;
    last = uid;
    return is_last;
}

const char * eagle_rpc_any_lost() {
    static thread_local std::string found;
    std::lock_guard<std::mutex> lock(links().mutex);
    for (eagle_rpc_link * link : links().all) {
        if (const char * server = link->lost_server()) {
            found = server;
            return found.c_str();
        }
    }
    return nullptr;
}

void eagle_watch_peer(intptr_t socket) {
    last_socket = socket;
    const int on = 1;
#ifdef _WIN32
    setsockopt((SOCKET) socket, SOL_SOCKET, SO_KEEPALIVE, (const char *) &on, sizeof on);
#else
    setsockopt((int) socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE
    set_option(socket, TCP_KEEPIDLE, 5);  // seconds
#elif defined(TCP_KEEPALIVE)
    set_option(socket, TCP_KEEPALIVE, 5);
#endif
#ifdef TCP_KEEPINTVL
    set_option(socket, TCP_KEEPINTVL, 1);
    set_option(socket, TCP_KEEPCNT, 5);
#endif
#ifdef TCP_USER_TIMEOUT
    set_option(socket, TCP_USER_TIMEOUT, 30000);  // ms; a server that is computing does not read
#endif
#ifdef TCP_SYNCNT
    set_option(socket, TCP_SYNCNT, 2);
#endif
#endif
}
