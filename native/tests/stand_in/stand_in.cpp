#include "stand_in.h"

#include <cfloat>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"
#include "stand_in_make.h"
#include "stand_in_table.h"

namespace {

constexpr int64_t OFFLOAD_MIN_BATCH = 32;
constexpr uintptr_t BASE = 0x10000;  // base address of every buffer; not a valid host address

struct Device {
    std::string name, host_name, lacks;
    stand_in::Make make;
    size_t alignment;
    ggml_backend_device dev;
    ggml_backend_buffer_type memory, host_memory;
};

// Devices registered by one call. Never freed, because ggml keeps them.
struct Registration {
    stand_in::Make make;
    ggml_backend_reg reg;
    std::vector<std::unique_ptr<Device>> devices;
};

// Counters of the devices: computed nodes by operation, and those listed in stand_in.h.
struct Counts {
    std::mutex mutex;
    std::map<std::string, int64_t> n;
};

Counts & counts() {
    static Counts c;
    return c;
}

void count(const char * what, int64_t n = 1) {
    const std::lock_guard<std::mutex> lock(counts().mutex);
    counts().n[what] += n;
}

// --- memory ----------------------------------------------------------------------------------------------------------

// The memory of the CPU backend that holds a buffer's data.
ggml_backend_buffer_t host_of(ggml_backend_buffer_t buffer) {
    return (ggml_backend_buffer_t) buffer->context;
}

char * bytes_of(const ggml_tensor * t) {
    ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return (char *) ggml_backend_buffer_get_base(host_of(buffer)) + ((uintptr_t) t->data - BASE);
}

const ggml_backend_buffer_i MEMORY = {
    /* free_buffer   = */ [](ggml_backend_buffer_t buffer) { ggml_backend_buffer_free(host_of(buffer)); },
    /* get_base      = */ [](ggml_backend_buffer_t) { return (void *) BASE; },
    /* init_tensor   = */ nullptr,
    /* memset_tensor = */ nullptr,
    /* set_tensor    = */
    [](ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
        count("writes");
        count("bytes written", (int64_t) size);
        memcpy(bytes_of(t) + offset, data, size);
    },
    /* get_tensor    = */
    [](ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t offset, size_t size) {
        memcpy(data, bytes_of(t) + offset, size);
    },
    /* set_tensor_2d = */ nullptr,
    /* get_tensor_2d = */ nullptr,
    /* cpy_tensor    = */ nullptr,
    /* clear         = */
    [](ggml_backend_buffer_t buffer, uint8_t value) { ggml_backend_buffer_clear(host_of(buffer), value); },
    /* reset         = */ nullptr,
};

Device & device_of(ggml_backend_buffer_type_t type) {
    return *(Device *) type->context;
}

const ggml_backend_buffer_type_i MEMORY_TYPE = {
    /* get_name       = */ [](ggml_backend_buffer_type_t type) { return device_of(type).name.c_str(); },
    /* alloc_buffer   = */
    [](ggml_backend_buffer_type_t type, size_t size) {
        ggml_backend_buffer_t host = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
        if (!host) {
            return (ggml_backend_buffer_t) nullptr;
        }
        ggml_backend_buffer_clear(host, 0xff);  // NaN, or -1
        count("buffers");
        return ggml_backend_buffer_init(type, MEMORY, host, size);
    },
    /* get_alignment  = */ [](ggml_backend_buffer_type_t type) { return device_of(type).alignment; },
    /* get_max_size   = */ nullptr,
    /* get_alloc_size = */ nullptr,
    /* is_host        = */ [](ggml_backend_buffer_type_t) { return false; },
};

// Pinned host memory. As with ggml-cuda, weights on the CPU are placed there if there is a GPU.
ggml_backend_buffer_t alloc_host(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        buffer->buft = type;
    }
    return buffer;
}

const ggml_backend_buffer_type_i HOST_TYPE = {
    /* get_name       = */ [](ggml_backend_buffer_type_t type) { return device_of(type).host_name.c_str(); },
    /* alloc_buffer   = */ alloc_host,
    /* get_alignment  = */
    [](ggml_backend_buffer_type_t) { return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type()); },
    /* get_max_size   = */ nullptr,
    /* get_alloc_size = */ nullptr,
    /* is_host        = */ [](ggml_backend_buffer_type_t) { return true; },
};

// --- computing -------------------------------------------------------------------------------------------------------

// Views in a split may refer to any tensor.
bool is_computed(const ggml_tensor * node) {
    const bool is_view = node->op == GGML_OP_NONE || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW ||
                         node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
    return !is_view && !ggml_is_empty(node);
}

// Copies of a split's nodes in host memory, for the CPU backend.
class Mirror {
  public:
    explicit Mirror(const ggml_cgraph & graph) {
        ggml_init_params params = {};
        params.mem_size = (graph.n_nodes * (GGML_MAX_SRC + 2) + 1) * ggml_tensor_overhead();
        params.no_alloc = true;
        ctx_.reset(ggml_init(params));
        for (int i = 0; i < graph.n_nodes; i++) {
            if (!is_computed(graph.nodes[i])) {
                continue;
            }
            nodes_.push_back(add(graph.nodes[i]));
            for (int k = 0; k < GGML_MAX_SRC; k++) {
                const ggml_tensor * src = graph.nodes[i]->src[k];
                nodes_.back()->src[k] = src ? add(src) : nullptr;
            }
        }
    }

    const std::vector<ggml_tensor *> & nodes() const { return nodes_; }

  private:
    ggml_context_ptr ctx_;
    std::map<const ggml_tensor *, ggml_tensor *> added_;
    std::vector<ggml_tensor *> nodes_;

    ggml_tensor * add(const ggml_tensor * t) {
        ggml_tensor *& mine = added_[t];
        if (mine) {
            return mine;
        }
        ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
        GGML_ASSERT(buffer->iface.get_base == MEMORY.get_base && "a tensor that is not in a GPU's memory");
        mine = ggml_new_tensor(ctx_.get(), t->type, GGML_MAX_DIMS, t->ne);
        memcpy(mine->nb, t->nb, sizeof mine->nb);
        memcpy(mine->op_params, t->op_params, sizeof mine->op_params);
        mine->op = t->op;
        mine->flags = t->flags;
        mine->data = bytes_of(t);
        mine->buffer = host_of(buffer);
        ggml_set_name(mine, t->name);
        return mine;
    }
};

struct Backend {
    Device & device;
    ggml_backend_ptr cpu;
    ggml_backend impl;
};

// Same as ggml-cuda: NaN is not greater than any value.
void argmax(ggml_tensor * op) {
    const ggml_tensor * x = op->src[0];
    for (int64_t row = 0; row < ggml_nrows(x); row++) {
        const float * values = (const float *) ((const char *) x->data + row * x->nb[1]);
        float best = -FLT_MAX;
        int32_t & id = ((int32_t *) op->data)[row] = -1;
        for (int64_t i = 0; i < x->ne[0]; i++) {
            if (values[i] > best) {
                best = values[i];
                id = (int32_t) i;
            }
        }
    }
}

// Same as ggml-vulkan.
void align_positions(const Device & device, ggml_tensor * rope) {
    ggml_tensor * positions = rope->src[1];
    char * base = (char *) ggml_backend_buffer_get_base(positions->buffer);
    const size_t offset = (char *) positions->data - base;
    positions->data = base + offset / device.alignment * device.alignment;
}

// Same as ggml-vulkan.
void require_alignment(const Device & device, const ggml_tensor * delta_net) {
    for (const ggml_tensor * src : delta_net->src) {
        const char * base = src ? (const char *) ggml_backend_buffer_get_base(src->buffer) : nullptr;
        GGML_ASSERT(!src || ((const char *) src->data - base) % device.alignment == 0);
    }
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    auto & self = *(Backend *) backend->context;
    const Mirror mirror(*graph);
    for (ggml_tensor * node : mirror.nodes()) {
        GGML_ASSERT(stand_in::computes(node));
        count(ggml_op_name(node->op));
        count("nodes");
        if (self.device.make.compute && self.device.make.compute(node)) {
            count("own kernels");
            continue;
        }
        if (node->op == GGML_OP_ARGMAX) {
            argmax(node);
            continue;
        }
        if (node->op == GGML_OP_GATED_DELTA_NET) {
            require_alignment(self.device, node);
        }
        if (node->op == GGML_OP_ROPE) {
            align_positions(self.device, node);
        }
        ggml_cgraph one = {};
        one.size = one.n_nodes = 1;
        one.nodes = &node;
        const ggml_status status = ggml_backend_graph_compute(self.cpu.get(), &one);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

ggml_guid_t guid() {
    static ggml_guid id = {0x5a, 0x11, 0x6e, 0x20, 0x61, 0x67, 0x6c, 0x65, 0x5a, 0x11, 0x6e, 0x20, 0x61, 0x67, 0x6c, 1};
    return &id;
}

const ggml_backend_i BACKEND = {
    /* get_name            = */ [](ggml_backend_t b) { return ((Backend *) b->context)->device.name.c_str(); },
    /* free                = */ [](ggml_backend_t b) { delete (Backend *) b->context; },
    /* set_tensor_async    = */ nullptr,
    /* get_tensor_async    = */ nullptr,
    /* set_tensor_2d_async = */ nullptr,
    /* get_tensor_2d_async = */ nullptr,
    /* cpy_tensor_async    = */ nullptr,
    /* synchronize         = */ nullptr,
    /* graph_plan_create   = */ nullptr,
    /* graph_plan_free     = */ nullptr,
    /* graph_plan_update   = */ nullptr,
    /* graph_plan_compute  = */ nullptr,
    /* graph_compute       = */ compute,
    /* event_record        = */ nullptr,
    /* event_wait          = */ nullptr,
    /* graph_optimize      = */ nullptr,
};

// --- device ----------------------------------------------------------------------------------------------------------

Device & device_of(ggml_backend_dev_t dev) {
    return *(Device *) dev->context;
}

bool is_named(const std::string & list, const char * name) {
    return ("," + list + ",").find("," + std::string(name) + ",") != std::string::npos;
}

void get_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = size_t(8) << 30;
}

ggml_backend_t init_backend(ggml_backend_dev_t dev, const char *) {
    auto * backend = new Backend{device_of(dev), nullptr, {}};
    backend->cpu.reset(ggml_backend_dev_init(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), nullptr));
    auto * set_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(backend->cpu.get())), "ggml_backend_set_n_threads");
    set_threads(backend->cpu.get(), 1);
    backend->impl = {guid(), BACKEND, dev, backend};
    return &backend->impl;
}

void get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name = props->description = device_of(dev).name.c_str();
    get_memory(dev, &props->memory_free, &props->memory_total);
    props->type = GGML_BACKEND_DEVICE_TYPE_GPU;
    props->caps.host_buffer = true;
    props->caps.mmap_support = true;
}

bool in_other_memory(const Device & device, const ggml_tensor * t) {
    return t && t->buffer && t->buffer->iface.get_base == MEMORY.get_base && t->buffer->buft != &device.memory;
}

bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    const Device & device = device_of(dev);
    for (const ggml_tensor * src : op->src) {
        if (in_other_memory(device, src)) {
            return false;
        }
    }
    return !is_named(device.lacks, ggml_op_name(op->op)) && stand_in::computes(op) &&
           (!device.make.knows || device.make.knows(op));
}

const ggml_backend_device_i DEVICE = {
    /* get_name             = */ [](ggml_backend_dev_t dev) { return device_of(dev).name.c_str(); },
    /* get_description      = */ [](ggml_backend_dev_t dev) { return device_of(dev).name.c_str(); },
    /* get_memory           = */ get_memory,
    /* get_type             = */ [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; },
    /* get_props            = */ get_props,
    /* init_backend         = */ init_backend,
    /* get_buffer_type      = */ [](ggml_backend_dev_t dev) { return &device_of(dev).memory; },
    /* get_host_buffer_type = */ [](ggml_backend_dev_t dev) { return &device_of(dev).host_memory; },
    /* buffer_from_host_ptr = */ nullptr,
    /* supports_op          = */ supports_op,
    /* supports_buft        = */
    [](ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) { return type == &device_of(dev).memory; },
    /* offload_op           = */
    [](ggml_backend_dev_t, const ggml_tensor * op) { return stand_in::batch_size(op) >= OFFLOAD_MIN_BATCH; },
    /* event_new            = */ nullptr,
    /* event_free           = */ nullptr,
    /* event_synchronize    = */ nullptr,
};

Registration & registration_of(ggml_backend_reg_t reg) {
    return *(Registration *) reg->context;
}

void * get_proc_address(ggml_backend_reg_t reg, const char * name) {
    auto * address = registration_of(reg).make.proc_address;
    return address ? address(name) : nullptr;
}

const ggml_backend_reg_i REGISTRY = {
    /* get_name         = */ [](ggml_backend_reg_t reg) { return registration_of(reg).make.registry; },
    /* get_device_count = */ [](ggml_backend_reg_t reg) { return registration_of(reg).devices.size(); },
    /* get_device       = */ [](ggml_backend_reg_t reg, size_t i) { return &registration_of(reg).devices[i]->dev; },
    /* get_proc_address = */ get_proc_address,
};

void register_devices(const stand_in::Make & make, int32_t n_devices, const char * lacks, int32_t alignment) {
    static std::map<std::string, int> n_registered;
    static auto & kept = *new std::vector<Registration *>();  // never destroyed, because they must outlive all users
    auto * made = new Registration{make, {GGML_BACKEND_API_VERSION, REGISTRY, nullptr}, {}};
    kept.push_back(made);
    made->reg.context = made;
    for (int32_t i = 0; i < n_devices; i++) {
        made->devices.push_back(std::make_unique<Device>());
        Device & device = *made->devices.back();
        device.name = make.registry + std::to_string(n_registered[make.registry]++);
        device.host_name = device.name + "_Host";
        device.lacks = lacks;
        device.make = make;
        device.alignment = (size_t) alignment;
        device.dev = {DEVICE, &made->reg, &device};
        device.memory = {MEMORY_TYPE, &device.dev, &device};
        device.host_memory = {HOST_TYPE, &device.dev, &device};
    }
    ggml_backend_register(&made->reg);
}

}  // namespace

void stand_in_register(int32_t n_devices, const char * lacks, int32_t alignment) {
    register_devices({"GPU", nullptr, nullptr, nullptr}, n_devices, lacks, alignment);
}

void stand_in::register_make(const Make & make) {
    register_devices(make, 1, "", 256);
}

int64_t stand_in_count(const char * what) {
    const std::lock_guard<std::mutex> lock(counts().mutex);
    return counts().n[what];
}
