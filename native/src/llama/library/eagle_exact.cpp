#include "eagle_exact.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "eagle_error.h"
#include "ggml-backend.h"
#include "llama-model.h"

namespace {

constexpr const char * NO_KERNEL = "no exact kernel reads this here";
constexpr const char * NOT_ENABLED = "exact on CUDA only if enabled: LLAMA_EAGLE_EXACT=1, exact=True or --exact";
constexpr const char * UNVERIFIED =
    "CUDA kernels have not been verified on a GPU: run llama-eagle check --exact -ngl -1";

// Backends may be loaded at run time, so their functions are looked up by name.
template <typename Function>
Function * backend_function(ggml_backend_dev_t device, const char * name) {
    ggml_backend_reg_t reg = device ? ggml_backend_dev_backend_reg(device) : nullptr;
    return reg ? reinterpret_cast<Function *>(ggml_backend_reg_get_proc_address(reg, name)) : nullptr;
}

template <typename Function>
Function * cpu_function(const char * name) {
    auto * found = backend_function<Function>(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), name);
    if (found == nullptr) {
        throw eagle::Error(EAGLE_ERR_INTERNAL, std::string("the CPU backend has no ") + name);
    }
    return found;
}

// Returns the reason why a device other than the CPU does not count as exact; null for an RPC server that computes as
// this CPU does.
const char * why_inexact(ggml_backend_dev_t device) {
    auto * is_exact = backend_function<bool(ggml_backend_dev_t)>(device, "eagle_rpc_is_exact");
    if (is_exact && is_exact(device)) {
        return nullptr;
    }
    auto * enabled = backend_function<bool(void)>(device, "eagle_cuda_exact_get");
    return enabled == nullptr ? NO_KERNEL : enabled() ? UNVERIFIED : NOT_ENABLED;
}

using Finding = std::tuple<std::string, std::string, const char *>;  // buffer type, tensor type, why
using Findings = std::map<Finding, int>;

// Returns the matrices whose product with a batch may have other bits than with one token. Embeddings count too, since
// only the graph determines whether a matrix is used as a table.
Findings inexact_weights(const llama_model * model) {
    auto * exact = cpu_function<bool(const ggml_tensor *)>("eagle_cpu_exact_weights");
    Findings found;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        if (ggml_n_dims(tensor) < 2 || exact(tensor)) {
            continue;
        }
        ggml_backend_buffer_t buffer = tensor->buffer;
        ggml_backend_dev_t device =
            buffer ? ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer)) : nullptr;
        const char * why = why_inexact(device);
        if (why == nullptr) {
            continue;
        }
        const char * where = buffer ? ggml_backend_buffer_name(buffer) : "no buffer";
        ++found[{where, ggml_type_name(tensor->type), why}];
    }
    return found;
}

std::string list(const Findings & found, bool unverified) {
    std::string text;
    for (const auto & [what, count] : found) {
        const auto & [where, type, why] = what;
        if ((why == UNVERIFIED) == unverified) {
            text += eagle::format("%s{\"where\": \"%s\", \"type\": \"%s\", \"tensors\": %d, \"why\": \"%s\"}",
                                  text.empty() ? "" : ", ", where.c_str(), type.c_str(), count, why);
        }
    }
    return "[" + text + "]";
}

std::string report(const llama_model * model) {
    static const char * const NAMES[] = {"off", "on", "strict"};
    const int32_t mode = eagle_exact_get();
    const Findings found = inexact_weights(model);
    return std::string("{\"exact\": ") + (mode != EAGLE_EXACT_OFF && found.empty() ? "true" : "false") +
           ", \"mode\": \"" + NAMES[mode] + "\", \"inexact\": " + list(found, false) +
           ", \"unverified\": " + list(found, true) + "}";
}

std::string devices() {
    std::string text;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        const bool cpu = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        const char * found = !cpu                                   ? why_inexact(device)
                             : eagle_exact_get() == EAGLE_EXACT_OFF ? "switched off"
                                                                    : nullptr;
        const char * why = found ? found : "";
        text += eagle::format("%s{\"device\": \"%s\", \"exact\": %s, \"why\": \"%s\"}", text.empty() ? "" : ", ",
                              ggml_backend_dev_name(device), *why == 0 ? "true" : "false", why);
    }
    return "[" + text + "]";
}

// Writes the result of make() and returns its length, or minus a status.
template <typename Make>
int32_t write_json(const char * call, char * json, size_t size, Make && make) {
    std::string text;
    const int32_t status = eagle::guarded(call, [&] {
        if (json == nullptr && size > 0) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "null argument");
        }
        text = make();
    });
    if (status != EAGLE_OK) {
        return -status;
    }
    if (size > 0) {
        snprintf(json, size, "%s", text.c_str());
    }
    return (int32_t) text.size();
}

}  // namespace

int32_t eagle_exact_set(int32_t mode) {
    return eagle::guarded("eagle_exact_set", [&] {
        if (mode < EAGLE_EXACT_OFF || mode > EAGLE_EXACT_STRICT) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, eagle::format("mode %d is not 0, 1 or 2", mode));
        }
        if (!cpu_function<bool(int)>("eagle_cpu_exact_set")(mode)) {
            throw eagle::Error(EAGLE_ERR_STATE, "strict exactness must be chosen before the first model is loaded");
        }
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            if (auto * set = backend_function<void(bool)>(ggml_backend_dev_get(i), "eagle_cuda_exact_set")) {
                set(mode != EAGLE_EXACT_OFF);
            }
        }
    });
}

int32_t eagle_exact_get(void) {
    int32_t mode = EAGLE_EXACT_OFF;
    eagle::guarded("eagle_exact_get", [&] { mode = cpu_function<int(void)>("eagle_cpu_exact_mode")(); });
    return mode;
}

int32_t eagle_exact_report(const llama_model * model, char * json, size_t size) {
    return write_json("eagle_exact_report", json, size, [&] {
        if (model == nullptr) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "null argument");
        }
        return report(model);
    });
}

int32_t eagle_exact_devices(char * json, size_t size) {
    return write_json("eagle_exact_devices", json, size, devices);
}
