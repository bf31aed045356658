// What the rows of a slot's cache depend on, apart from its tokens. It is saved next to the slot's file with the suffix
// ".settings", and a slot is restored only by a server with the same settings. Files of llama.cpp have none.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"
#include "eagle_checkpoints.h"
#include "llama.h"

static const char * const EAGLE_SETTINGS_SUFFIX = ".settings";
static const char * const EAGLE_ADAPTER = "adapter ";  // the beginning of an adapter's name: its value is the scale

inline std::string eagle_override_value(const llama_model_kv_override & one) {
    switch (one.tag) {
    case LLAMA_KV_OVERRIDE_TYPE_INT:
        return std::to_string(one.val_i64);
    case LLAMA_KV_OVERRIDE_TYPE_FLOAT:
        return std::to_string(one.val_f64);
    case LLAMA_KV_OVERRIDE_TYPE_BOOL:
        return one.val_bool ? "true" : "false";
    default:
        return one.val_str;
    }
}

// Returns the name of a file, its size and a checksum of parts of it: another training has other weights everywhere.
inline std::string eagle_file_mark(const std::string & path) {
    constexpr int64_t N_PARTS = 16, PART = 4096;
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const int64_t size = std::max<int64_t>(0, (int64_t) file.tellg());
    std::string parts;
    for (int64_t i = 0; i < N_PARTS && file; i++) {
        std::string part((size_t) std::min(PART, size), 0);
        file.seekg((size - (int64_t) part.size()) / (N_PARTS - 1) * i);
        file.read(part.data(), (std::streamsize) part.size());
        parts += part;
    }
    std::ostringstream mark;
    mark << path.substr(path.find_last_of("/\\") + 1) << " of " << size << " bytes, checksum " << std::hex
         << eagle_checksum(parts.data(), parts.size());
    return mark.str();
}

// Returns the value of each setting by its name. The order of the adapters does not matter.
inline std::map<std::string, std::string> eagle_row_settings(const common_params & params, const llama_model * model,
                                                             const std::vector<common_adapter_lora_info> & adapters) {
    const auto file = [](const std::string & path) { return path.empty() ? path : eagle_file_mark(path); };
    std::map<std::string, std::string> found = {
        {"model", file(params.model.path) + " and " + std::to_string(llama_model_size(model)) + " bytes of weights"},
        {"mmproj", file(params.mmproj.path)},
        {"--cache-type-k", ggml_type_name(params.cache_type_k)},
        {"--cache-type-v", ggml_type_name(params.cache_type_v)},
        {"--rope-scaling", std::to_string((int) params.rope_scaling_type)},
        {"--rope-freq-base", std::to_string(params.rope_freq_base)},
        {"--rope-freq-scale", std::to_string(params.rope_freq_scale)},
        {"--yarn-orig-ctx", std::to_string(params.yarn_orig_ctx)},
        {"--yarn-ext-factor", std::to_string(params.yarn_ext_factor)},
        {"--yarn-attn-factor", std::to_string(params.yarn_attn_factor)},
        {"--yarn-beta-fast", std::to_string(params.yarn_beta_fast)},
        {"--yarn-beta-slow", std::to_string(params.yarn_beta_slow)},
    };
    for (const auto & one : params.kv_overrides) {
        if (one.key[0] != 0) {
            found[std::string("--override-kv ") + one.key] = eagle_override_value(one);
        }
    }
    for (const auto & vector : params.control_vectors) {
        found["--control-vector " + file(vector.fname)] = std::to_string(vector.strength) + " in the layers " +
                                                          std::to_string(params.control_vector_layer_start) + " to " +
                                                          std::to_string(params.control_vector_layer_end);
    }
    for (const auto & adapter : adapters) {
        if (adapter.scale != 0.0f) {
            std::ostringstream scale;
            scale << std::hexfloat << adapter.scale;
            found[EAGLE_ADAPTER + file(adapter.path)] = scale.str();
        }
    }
    return found;
}

inline void eagle_save_settings(const std::map<std::string, std::string> & settings, const std::string & path) {
    std::ofstream file(path + EAGLE_SETTINGS_SUFFIX);
    for (const auto & [name, value] : settings) {
        file << name << "\t" << value << "\n";
    }
}

// Returns the server's adapters with the scales under which a slot's file was saved. Throws if the file was saved under
// other settings, or with an adapter that the server does not have.
inline std::vector<common_adapter_lora_info> eagle_saved_adapters(const common_params & params,
                                                                  const llama_model * model, const std::string & path) {
    std::vector<common_adapter_lora_info> adapters = params.lora_adapters;
    for (auto & adapter : adapters) {
        adapter.scale = 0.0f;
    }
    std::map<std::string, std::string> own = eagle_row_settings(params, model, {});
    std::map<std::string, std::string> saved;
    std::ifstream file(path + EAGLE_SETTINGS_SUFFIX);
    for (std::string line; std::getline(file, line);) {
        const size_t tab = line.find('\t');
        saved[line.substr(0, tab)] = tab == std::string::npos ? "" : line.substr(tab + 1);
    }
    const std::string kind = EAGLE_ADAPTER;
    for (const auto & [name, value] : saved) {
        bool is_found = false;
        for (auto & adapter : adapters) {
            if (adapter.scale == 0.0f && name == kind + eagle_file_mark(adapter.path)) {
                adapter.scale = std::strtof(value.c_str(), nullptr);
                is_found = true;
            }
        }
        if (name.compare(0, kind.size(), kind) == 0 && !is_found) {
            throw std::invalid_argument("it was saved with the adapter '" + name.substr(kind.size()) +
                                        "', which this server has not loaded (--lora)");
        }
        if (!is_found && own[name] != value) {
            throw std::invalid_argument("it was saved with " + name + " " + (value.empty() ? "unset" : value) +
                                        ", and this server has " + (own[name].empty() ? "none" : own[name]));
        }
        own.erase(name);
    }
    for (const auto & [name, value] : own) {
        if (!saved.empty() && !value.empty()) {
            throw std::invalid_argument("it was saved without " + name + ", and this server has " + value);
        }
    }
    return adapters;
}

// Gives adapters that are loaded without being applied the scale 0, which the server applies to each request.
inline void eagle_apply_no_adapter_yet(common_params & params) {
    for (auto & adapter : params.lora_adapters) {
        adapter.scale = params.lora_init_without_apply ? 0.0f : adapter.scale;
    }
}
