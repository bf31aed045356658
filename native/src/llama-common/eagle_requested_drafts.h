// Draft settings of a single request: "speculative.n_max", "n_min", "p_min" and "type".
#pragma once

#include <stdexcept>
#include <string>

#include "common.h"
#include "json.h"

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
