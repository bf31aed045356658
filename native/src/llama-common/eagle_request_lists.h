// Checks of lists in a request whose invalid entries llama.cpp ignores: logit_bias, samplers and lora; and the limit of
// a sampler's history. Checks throw std::invalid_argument, which the server answers with status 400.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "common.h"
#include "eagle_chat.h"
#include "json.h"
#include "sampling.h"

// Returns true for a number that fits into a float, and for false, which bans a token.
inline bool eagle_is_bias(const common_json & value) {
    return value == false || (value.is_number() && std::fabs(value.get<double>()) <= FLT_MAX);
}

// Returns true for a key of logit_bias: a token id, or a text. llama.cpp reads as an id what strtol does.
inline bool eagle_is_token(const std::string & key, int n_vocab) {
    char * end = nullptr;
    const long id = std::strtol(key.c_str(), &end, 10);
    return *end != 0 || (!key.empty() && 0 <= id && id < n_vocab);
}

inline void eagle_require_bias(const common_json & given, int n_vocab) {
    const auto require = [&](bool is_token, const common_json & token, const common_json & bias) {
        eagle_require(is_token, "'logit_bias': " + token.dump() + " is neither a text nor a token id from 0 to " +
                                    std::to_string(n_vocab - 1));
        eagle_require(eagle_is_bias(bias), "'logit_bias': " + bias.dump() + " is neither a number nor false");
    };
    if (given.is_object()) {
        for (const auto & item : given.items()) {
            require(eagle_is_token(item.key(), n_vocab), item.key(), item.value());
        }
        return;
    }
    eagle_require(given.is_array(), "'logit_bias' is neither an object nor a list");
    for (const auto & entry : given) {
        eagle_require(entry.is_array() && entry.size() == 2, "'logit_bias': " + entry.dump() + " is no pair");
        const common_json & token = entry.at(0);
        const bool is_id = token.is_number_integer() && 0 <= token.get<int64_t>() && token.get<int64_t>() < n_vocab;
        require(is_id || (token.is_string() && !token.get<std::string>().empty()), token, entry.at(1));
    }
}

// Clients send names of other versions of llama.cpp, so unknown ones are skipped as long as one is known.
inline void eagle_require_samplers(const common_json & given) {
    eagle_require(given.is_array() || given.is_string(), "'samplers' is neither a list nor a text");
    bool is_known = given.empty() || given == "";
    if (given.is_string()) {
        is_known = is_known || !common_sampler_types_from_chars(given.get<std::string>()).empty();
    } else {
        for (const auto & entry : given) {
            eagle_require(entry.is_string(), "'samplers': " + entry.dump() + " is no name");
            is_known = is_known || !common_sampler_types_from_names({entry.get<std::string>()}).empty();
        }
    }
    eagle_require(is_known, "'samplers' names no sampler of this server");
}

inline void eagle_require_adapters(const common_json & given, size_t n_adapters) {
    eagle_require(given.is_array(), "'lora' is no list");
    for (const auto & entry : given) {
        const bool has_id = eagle_has(entry, "id") && entry.at("id").is_number_integer();
        const int64_t id = has_id ? entry.at("id").get<int64_t>() : -1;
        eagle_require(0 <= id && id < (int64_t) n_adapters, "'lora': the id in " + entry.dump() +
                                                                " is none of this server's " +
                                                                std::to_string(n_adapters) + " adapters (--lora)");
        const bool has_scale = eagle_has(entry, "scale") && entry.at("scale").is_number();
        eagle_require(has_scale && std::fabs(entry.at("scale").get<double>()) <= FLT_MAX,
                      "'lora': the scale in " + entry.dump() + " is no number");
    }
}

// Returns the scales of all adapters: 0 for those that a request does not list.
inline std::map<int, float> eagle_all_adapters(std::map<int, float> scales, size_t n_adapters) {
    for (size_t i = 0; i < n_adapters; i++) {
        scales.insert({(int) i, 0.0f});
    }
    return scales;
}

// Gives adapters that are loaded without being applied the scale 0, which the server applies to each request.
inline void eagle_apply_no_adapter_yet(common_params & params) {
    for (auto & adapter : params.lora_adapters) {
        adapter.scale = params.lora_init_without_apply ? 0.0f : adapter.scale;
    }
}

inline void eagle_require_lists(const common_json & body, int n_vocab, size_t n_adapters) {
    if (eagle_has(body, "logit_bias")) {
        eagle_require_bias(body.at("logit_bias"), n_vocab);
    }
    if (eagle_has(body, "samplers")) {
        eagle_require_samplers(body.at("samplers"));
    }
    if (eagle_has(body, "lora")) {
        eagle_require_adapters(body.at("lora"), n_adapters);
    }
}

// Limits what samplers remember to the context, in which nothing is older: they allocate memory for all of it.
inline void eagle_limit_history(common_params_sampling & params, int32_t n_ctx) {
    params.penalty_last_n = std::min(params.penalty_last_n, n_ctx);
    params.dry_penalty_last_n = std::min(params.dry_penalty_last_n, n_ctx);
}
