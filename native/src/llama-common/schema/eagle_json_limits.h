// Limits for untrusted JSON, because its reader recurses and compares keys. Exceeding one throws an exception that
// names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

constexpr size_t EAGLE_MAX_JSON_DEPTH = 1000;
constexpr int64_t EAGLE_MAX_JSON_COMPARED = 200'000'000;  // pairs of keys: those of an object with 20,000

// Returns what would make a JSON text too expensive to read; empty if nothing does. The reader compares each key with
// those before it in its object.
inline std::string eagle_json_excess(const std::string & json) {
    std::vector<int64_t> n_keys;  // of the arrays and objects that are open
    int64_t n_compared = 0;
    bool quoted = false;
    for (size_t i = 0; i < json.size(); i++) {
        const char c = json[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (n_keys.size() == EAGLE_MAX_JSON_DEPTH) {
                return "it is nested deeper than " + std::to_string(EAGLE_MAX_JSON_DEPTH) + " levels";
            }
            n_keys.push_back(0);
        } else if (!n_keys.empty() && c == ':') {
            n_compared += n_keys.back()++;
        } else if (!n_keys.empty() && (c == ']' || c == '}')) {
            n_keys.pop_back();
        }
    }
    return n_compared > EAGLE_MAX_JSON_COMPARED ? "its objects have too many keys" : "";
}

inline void eagle_require_readable(const std::string & json) {
    const std::string excess = eagle_json_excess(json);
    if (!excess.empty()) {
        throw std::runtime_error(excess);
    }
}
