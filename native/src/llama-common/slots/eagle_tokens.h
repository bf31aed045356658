// Checks of token ids in requests. An id outside the vocabulary would be read from behind a table, or come back as it
// is.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "json.h"

// Number of tokens of the loaded model; 0 if there is none, as in a server that passes requests on.
inline std::atomic<int32_t> & eagle_n_tokens() {
    static std::atomic<int32_t> value{0};
    return value;
}

// Longest context that the loaded model was trained with, in tokens; 0 if it is unknown.
inline std::atomic<int32_t> & eagle_trained_context() {
    static std::atomic<int32_t> value{0};
    return value;
}

// Throws for an integer that is no token id of the model. Integers may be in lists, and in the text of a prompt with
// media. The type of all else is checked where it is read.
inline void eagle_require_tokens(const common_json & value) {
    const int32_t n_tokens = eagle_n_tokens();
    if (value.is_number_integer()) {
        const double id = value.get<double>();  // of any size
        if (n_tokens > 0 && !(0 <= id && id < n_tokens)) {
            throw std::invalid_argument(value.dump() + " is no token id of this model: its " +
                                        std::to_string(n_tokens) + " tokens have the ids 0 to " +
                                        std::to_string(n_tokens - 1));
        }
    } else if (value.is_array()) {
        for (const auto & part : value) {
            eagle_require_tokens(part);
        }
    } else if (value.is_object() && value.contains("prompt_string")) {
        eagle_require_tokens(value.at("prompt_string"));
    }
}
