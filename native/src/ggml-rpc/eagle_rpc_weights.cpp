#include "eagle_rpc_weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "eagle_rpc_link.h"
#include "ggml-impl.h"

namespace {

constexpr size_t ROWS = 64;  // a multiple of every layout's group of rows

bool is_product(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
}

bool is_leaf(const ggml_tensor * tensor) {
    return tensor->op == GGML_OP_NONE && tensor->view_src == nullptr && tensor->buffer != nullptr;
}

bool same_shape(const ggml_tensor & a, const ggml_tensor & b) {
    return a.type == b.type && std::equal(a.ne, a.ne + GGML_MAX_DIMS, b.ne);
}

ggml_backend_buffer_type_t * extra_types(ggml_backend_dev_t device) {
    const auto get = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    return get != nullptr ? get(device) : nullptr;
}

// Returns a function of eagle_cpu_proc_address(), null for a backend other than our CPU's.
template <typename Function>
Function * cpu_function(ggml_backend_t backend, const char * name) {
    const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    return (Function *) ggml_backend_reg_get_proc_address(reg, name);
}

// True for a CPU backend of our build whose layouts all have exact kernels.
bool is_exact(ggml_backend_t backend) {
    auto * mode = cpu_function<int(void)>(backend, "eagle_cpu_exact_mode");
    auto * allows_foreign = cpu_function<bool(void)>(backend, "eagle_allows_foreign_layouts");
    return mode != nullptr && allows_foreign != nullptr && mode() != 0 && !allows_foreign();
}

// Calls f(offset, size) for pieces of whole groups that together contain the bytes.
template <typename F>
void in_pieces(const ggml_tensor & w, size_t offset, size_t size, F && f) {
    const size_t group = ROWS * w.nb[1], piece = std::max<size_t>((8 << 20) / group, 1) * group;
    const size_t end = std::min(ggml_nbytes(&w), (offset + size + group - 1) / group * group);
    for (size_t at = offset / group * group; at < end; at += piece) {
        f(at, std::min(piece, end - at));
    }
}

}  // namespace

uint8_t eagle_rpc_greeting(const std::vector<ggml_backend_t> & backends) {
    return std::all_of(backends.begin(), backends.end(), is_exact) ? eagle_rpc_link::EXACT : 0;
}

void eagle_rpc_weights::allocated(ggml_backend_t backend, ggml_backend_buffer_t buffer) {
    if (auto * request = cpu_function<void(void *, size_t)>(backend, "eagle_request_huge_pages")) {
        request(ggml_backend_buffer_get_base(buffer), ggml_backend_buffer_get_size(buffer));
    }
}

// A buffer of no use but its functions, which work on the tensor's own address.
ggml_backend_buffer_t eagle_rpc_weights::layout_of(ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_ptr & layout = layouts_[type];
    if (!layout) {
        layout.reset(ggml_backend_buft_alloc_buffer(type, 64));
    }
    return layout.get();
}

// Returns the weight with the first layout that supports the product and can be read back.
eagle_rpc_weights::weight eagle_rpc_weights::choose(ggml_backend_dev_t device, const ggml_tensor * product) {
    weight found{*product->src[0], *product->src[0], nullptr};
    for (auto * type = extra_types(device); type != nullptr && *type != nullptr; type++) {
        const ggml_backend_buffer_t layout = layout_of(*type);
        if (layout == nullptr || layout->iface.get_tensor == nullptr || layout->iface.init_tensor == nullptr) {
            continue;
        }
        found.packed = found.plain;
        found.packed.buffer = layout;
        ggml_tensor op = *product;
        op.src[0] = &found.packed;
        if (ggml_backend_dev_supports_op(device, &op)) {
            layout->iface.init_tensor(layout, &found.packed);
            found.layout = layout;
            break;
        }
    }
    return found;
}

eagle_rpc_weights::weights::iterator eagle_rpc_weights::first_in(const void * data, size_t size) {
    auto at = weights_.upper_bound((uintptr_t) data);
    if (at != weights_.begin()) {
        const auto before = std::prev(at);
        if (before->first + ggml_nbytes(&before->second.plain) > (uintptr_t) data) {
            return before;
        }
    }
    return at != weights_.end() && at->first < (uintptr_t) data + size ? at : weights_.end();
}

void eagle_rpc_weights::prepare(ggml_backend_t backend, ggml_cgraph * graph) {
    const ggml_backend_dev_t device = ggml_backend_get_device(backend);
    if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) {
        return;
    }
    std::map<const void *, const ggml_tensor *> products;  // by the address of their weights
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i] != nullptr && is_product(graph->nodes[i]) && is_leaf(graph->nodes[i]->src[0])) {
            products.emplace(graph->nodes[i]->src[0]->data, graph->nodes[i]);
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        for (int s = 0; node != nullptr && s < GGML_MAX_SRC; s++) {
            const ggml_tensor * source = node->src[s];
            if (source == nullptr || (s == 0 && is_product(node) && is_leaf(source))) {
                continue;
            }
            const ggml_tensor * root = source->view_src != nullptr ? source->view_src : source;
            if (is_leaf(root) && products.count(root->data) != 0) {  // an embedding that is the head as well
                weights_.emplace((uintptr_t) root->data, weight{*root, *root, nullptr});
            }
            release(source->data, ggml_nbytes(source));
        }
    }
    for (const auto & [data, product] : products) {
        ggml_tensor * w = product->src[0];
        auto at = first_in(data, ggml_nbytes(w));
        if (at == weights_.end()) {
            at = weights_.emplace((uintptr_t) data, choose(device, product)).first;
            if (const weight & found = at->second; found.layout != nullptr) {
                in_pieces(found.plain, 0, ggml_nbytes(w), [&](size_t offset, size_t size) {
                    const char * begin = (const char *) data + offset;
                    const std::vector<char> sent(begin, begin + size);
                    found.layout->iface.set_tensor(found.layout, &at->second.packed, sent.data(), offset, size);
                });
            }
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_tensor * node = graph->nodes[i];
        if (node == nullptr || !is_product(node) || !is_leaf(node->src[0])) {
            continue;
        }
        ggml_tensor * w = node->src[0];
        const auto at = weights_.find((uintptr_t) w->data);
        if (at != weights_.end()) {
            const weight & found = at->second;
            const ggml_tensor & now = found.layout != nullptr ? found.packed : found.plain;
            GGML_ASSERT(found.layout == nullptr || same_shape(*w, found.plain));
            w->buffer = now.buffer;
            w->extra = now.extra;
        }
    }
    prepared_.insert(graph);
}

void eagle_rpc_weights::prepare_again(ggml_backend_t backend, ggml_cgraph * graph) {
    if (prepared_.count(graph) == 0) {
        prepare(backend, graph);
    }
}

bool eagle_rpc_weights::read(const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    const char * begin = (const char *) tensor->data + offset;
    const auto at = first_in(begin, size);
    if (at == weights_.end() || at->second.layout == nullptr) {
        return false;
    }
    const weight & found = at->second;
    const size_t from = (uintptr_t) begin - at->first;
    if ((uintptr_t) begin < at->first || from + size > ggml_nbytes(&found.plain)) {
        release(begin, size);
        return false;
    }
    in_pieces(found.plain, from, size, [&](size_t piece, size_t n) {
        std::vector<char> sent(n);
        found.layout->iface.get_tensor(found.layout, &found.packed, sent.data(), piece, n);
        const size_t first = std::max(piece, from), last = std::min(piece + n, from + size);
        std::memcpy((char *) data + first - from, sent.data() + first - piece, last - first);
    });
    return true;
}

void eagle_rpc_weights::release(const void * data, size_t size) {
    for (auto at = first_in(data, size); at != weights_.end() && at->first < (uintptr_t) data + size; ++at) {
        weight & found = at->second;
        if (found.layout == nullptr) {
            continue;
        }
        in_pieces(found.plain, 0, ggml_nbytes(&found.plain), [&](size_t offset, size_t n) {
            std::vector<char> sent(n);
            found.layout->iface.get_tensor(found.layout, &found.packed, sent.data(), offset, n);
            std::memcpy((char *) found.plain.data + offset, sent.data(), n);
        });
        found.layout = nullptr;
        prepared_.clear();
    }
}

void eagle_rpc_weights::forget(ggml_backend_buffer_t buffer) {
    prepared_.clear();
    for (auto at = weights_.begin(); at != weights_.end();) {
        at = at->second.plain.buffer == buffer ? weights_.erase(at) : std::next(at);
    }
}
