#include "eagle_exact.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "eagle_error.h"
#include "ggml-backend.h"
#include "llama-model.h"

namespace {

// The CPU backend may have been loaded at run time: its functions are found by name.
template <typename Function>
Function * cpu_function(const char * name) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    void * found = cpu ? ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name) : nullptr;
    if (found == nullptr) {
        throw eagle::Error(EAGLE_ERR_INTERNAL, std::string("the CPU backend has no ") + name);
    }
    return reinterpret_cast<Function *>(found);
}

using Finding = std::pair<std::string, std::string>;  // buffer type, tensor type

// Matrices that a batch may be multiplied with otherwise than one token is. Embeddings that are only looked up count
// too: which ones those are is the graph's affair, and a look-up is exact anywhere only by accident.
std::map<Finding, int> inexact_weights(const llama_model * model) {
    auto * exact = cpu_function<bool(const ggml_tensor *)>("eagle_cpu_exact_weights");
    std::map<Finding, int> found;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        if (ggml_n_dims(tensor) >= 2 && !exact(tensor)) {
            const char * where = tensor->buffer ? ggml_backend_buffer_name(tensor->buffer) : "no buffer";
            ++found[{where, ggml_type_name(tensor->type)}];
        }
    }
    return found;
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
    });
}

int32_t eagle_exact_get(void) {
    int32_t mode = EAGLE_EXACT_OFF;
    eagle::guarded("eagle_exact_get", [&] { mode = cpu_function<int(void)>("eagle_cpu_exact_mode")(); });
    return mode;
}

int32_t eagle_exact_report(const llama_model * model, char * json, size_t size) {
    std::string text;
    const int32_t status = eagle::guarded("eagle_exact_report", [&] {
        if (model == nullptr || (json == nullptr && size > 0)) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "null argument");
        }
        static const char * const NAMES[] = {"off", "on", "strict"};
        const int32_t mode = eagle_exact_get();
        const auto found = inexact_weights(model);
        for (const auto & [what, count] : found) {
            text += eagle::format("%s{\"where\": \"%s\", \"type\": \"%s\", \"tensors\": %d}", text.empty() ? "" : ", ",
                                  what.first.c_str(), what.second.c_str(), count);
        }
        text = eagle::format("{\"exact\": %s, \"mode\": \"%s\", \"inexact\": [",
                             mode != EAGLE_EXACT_OFF && found.empty() ? "true" : "false", NAMES[mode]) +
               text + "]}";
    });
    if (status != EAGLE_OK) {
        return -status;
    }
    if (size > 0) {
        snprintf(json, size, "%s", text.c_str());
    }
    return (int32_t) text.size();
}
