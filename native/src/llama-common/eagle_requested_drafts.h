// Draft settings of a single request: "speculative": {"n_max", "n_min", "p_min"} or "none", in nested or dotted form.
#pragma once

#include <stdexcept>
#include <string>

#include "common.h"
#include "json.h"

// Returns the request with nested settings as dotted keys. "speculative": "none" becomes "speculative.type": "none".
inline common_json eagle_flat_drafts(const common_json & body) {
    if (!body.contains("speculative") || body.at("speculative").is_null()) {
        return body;
    }
    common_json flat = body;
    const common_json & given = body.at("speculative");
    flat.erase("speculative");
    if (given.is_object()) {
        for (const auto & item : given.items()) {
            flat["speculative." + item.key()] = item.value();
        }
    } else {
        flat["speculative.type"] = given;
    }
    return flat;
}

// Sets the type of speculation; a request may only disable it.
inline void eagle_set_draft_type(const common_json & given, common_params_speculative & params) {
    const bool is_none = (given.is_string() && given.get<std::string>() == "none") || given == false;
    if (!is_none) {
        throw std::invalid_argument("a request may set it to \"none\"; the server's own drafter is used otherwise");
    }
    params.types = {COMMON_SPECULATIVE_TYPE_NONE};
}

// Returns the maximum draft length of a request, 0 if it disables drafts.
inline int eagle_longest_draft(const common_params_speculative & params) {
    const bool is_none = params.types.size() == 1 && params.types[0] == COMMON_SPECULATIVE_TYPE_NONE;
    return is_none ? 0 : params.draft.n_max;
}

// Throws for unknown settings, which llama.cpp would ignore.
inline void eagle_require_draft_settings(const common_json & body, const common_params_speculative & params) {
    const std::string prefix = "speculative.";
    for (const auto & item : body.items()) {
        const std::string & key = item.key();
        if (key.compare(0, prefix.size(), prefix) == 0 && key != "speculative.n_max" && key != "speculative.n_min" &&
            key != "speculative.p_min" && key != "speculative.type") {
            throw std::invalid_argument(key + " cannot be set by a request: n_max, n_min, p_min and type can");
        }
    }
    if (body.contains("speculative.n_min") && params.draft.n_min > params.draft.n_max) {
        throw std::invalid_argument("speculative.n_min is above n_max");
    }
}
