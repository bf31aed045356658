#include "eagle_rpc_link.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ggml-backend.h"
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
constexpr uint32_t DEVICE_BITS = 16;  // of a device number; the place of a graph is above them

#ifndef _WIN32
void set_option(intptr_t socket, int option, int value) {
    setsockopt((int) socket, IPPROTO_TCP, option, &value, sizeof value);
}
#endif

}  // namespace

void eagle_rpc_link::opened(const std::string & server, bool worked) {
    server_ = server;
    answered(worked, nullptr, 0);
}

void eagle_rpc_link::answered(bool worked, void * output, size_t size) {
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

void * eagle_rpc_link::base_or_any(uint64_t base) const {
    return reinterpret_cast<void *>(lost_ ? ANY_ADDRESS : (uintptr_t) base);
}

size_t eagle_rpc_link::alignment_or_any(size_t alignment) const {
    return lost_ ? ANY_ALIGNMENT : alignment;
}

bool eagle_rpc_link::keeps(uint32_t & device, uint64_t uid) {
    const Graphs & graphs = graphs_[device];
    for (uint32_t slot = 0; uid != 0 && slot < (ours_ ? N_GRAPHS : 1); slot++) {
        if (graphs.kept[slot].uid == uid) {
            device |= slot << DEVICE_BITS;
            return true;
        }
    }
    return false;
}

bool eagle_rpc_link::keeps(uint32_t & device, uint64_t uid, uint8_t * bytes, size_t size) {
    Graphs & graphs = graphs_[device];
    const uint32_t n = ours_ ? N_GRAPHS : 1;
    const std::vector<uint8_t> content(bytes + sizeof device, bytes + size);
    const auto end = graphs.kept.begin() + n;
    const auto found =
        std::find_if(graphs.kept.begin(), end, [&](const Graph & graph) { return graph.bytes == content; });
    const bool is_there = found != end;
    const uint32_t slot = is_there ? (uint32_t) (found - graphs.kept.begin()) : graphs.next;
    graphs.kept[slot].uid = uid;
    if (!is_there) {
        graphs.kept[slot].bytes = content;
        graphs.next = (slot + 1) % n;
    }
    device |= slot << DEVICE_BITS;
    std::memcpy(bytes, &device, sizeof device);
    return is_there;
}

uint32_t eagle_rpc_link::slot_of(uint32_t & device) {
    const uint32_t slot = device >> DEVICE_BITS;
    device &= (1u << DEVICE_BITS) - 1;
    return slot < N_GRAPHS ? device * N_GRAPHS + slot : UINT32_MAX;
}

void eagle_watch_peer(intptr_t socket) {
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
    set_option(socket, TCP_USER_TIMEOUT, 30000);  // ms; a server that computes reads nothing meanwhile
#endif
#ifdef TCP_SYNCNT
    set_option(socket, TCP_SYNCNT, 2);
#endif
#endif
}

bool eagle_copy_through_host(const ggml_tensor * src, ggml_tensor * dst) {
    std::vector<uint8_t> data(ggml_nbytes(src));
    ggml_backend_tensor_get(src, data.data(), 0, data.size());
    ggml_backend_tensor_set(dst, data.data(), 0, data.size());
    return true;
}
