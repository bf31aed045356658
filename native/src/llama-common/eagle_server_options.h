// llama-server's arguments for our draft engine. Each is parsed once, here; a wrong value ends the server with a
// message that names the argument.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string>
#include <vector>

#include "arg.h"

constexpr int32_t EAGLE_MAX_COUNT = 1 << 26;  // tokens; the engine's own limit of a draft's context

inline int32_t eagle_parse_count(const std::string & text) {
    int32_t value = 0;
    const char * const end = text.data() + text.size();
    const std::from_chars_result result = std::from_chars(text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end || value < 0 || value > EAGLE_MAX_COUNT) {
        throw std::invalid_argument("expected a whole number from 0 to " + std::to_string(EAGLE_MAX_COUNT) +
                                    ", found '" + text + "'");
    }
    return value;
}

inline std::vector<common_arg> eagle_server_options() {
    std::vector<common_arg> options;
    options.emplace_back(std::initializer_list<const char *>{"--eagle-draft-ctx"}, "N",
                         "context size of the draft in tokens (default: 0, same as a slot's)",
                         [](common_params & params, const std::string & value) {
                             params.speculative.draft.eagle_n_ctx = eagle_parse_count(value);
                         });
    options.emplace_back(std::initializer_list<const char *>{"--eagle-draft-vocab"}, "N",
                         "vocabulary rows that a draft's head reads for each drafted token (default: 0, all)",
                         [](common_params & params, const std::string & value) {
                             params.speculative.draft.eagle_n_vocab = eagle_parse_count(value);
                         });
    options.emplace_back(
        std::initializer_list<const char *>{"--eagle-draft-length"}, "auto|fixed",
        "auto: the draft length that is fastest, at most --spec-draft-n-max; fixed: always that length. "
        "Either one replaces ngram-simple by llama-eagle's prompt look-up",
        [](common_params & params, const std::string & value) {
            if (value != "auto" && value != "fixed") {
                throw std::invalid_argument("expected auto or fixed, found '" + value + "'");
            }
            params.speculative.draft.eagle_length = value;
        });
    options.emplace_back(
        std::initializer_list<const char *>{"--eagle-lookup-cache"}, "FILE",
        "file that prompt look-up reads at the start and adds to at the end (default: none)",
        [](common_params & params, const std::string & value) { params.speculative.draft.eagle_lookup_cache = value; });
    for (common_arg & option : options) {
        option.set_spec().set_examples({LLAMA_EXAMPLE_SERVER});
    }
    return options;
}
