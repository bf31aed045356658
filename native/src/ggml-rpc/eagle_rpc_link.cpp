#include "eagle_rpc_link.h"

#include <algorithm>
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

// Returns a function of eagle_cpu_proc_address(), null for a backend other than our CPU's.
template <typename Function>
Function * cpu_function(ggml_backend_t backend, const char * name) {
    const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    return (Function *) ggml_backend_reg_get_proc_address(reg, name);
}

// Returns true for a CPU backend of our build whose layouts all have exact kernels.
bool is_exact(ggml_backend_t backend) {
    auto * mode = cpu_function<int(void)>(backend, "eagle_cpu_exact_mode");
    auto * allows_foreign = cpu_function<bool(void)>(backend, "eagle_allows_foreign_layouts");
    return mode != nullptr && allows_foreign != nullptr && mode() != 0 && !allows_foreign();
}

}  // namespace

uint8_t eagle_rpc_greeting(const std::vector<ggml_backend_t> & backends) {
    return std::all_of(backends.begin(), backends.end(), is_exact) ? eagle_rpc_link::EXACT : 0;
}

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
