// Limits for untrusted JSON and JSON schemas, because parsers and converters recurse into them. Exceeding a limit
// throws an exception that names it; the server responds with status 400.
#pragma once

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "eagle_other_names.h"
#include "eagle_sampler.h"

constexpr size_t EAGLE_MAX_JSON_DEPTH = 1000;
constexpr int64_t EAGLE_MAX_JSON_COMPARED = 200'000'000;  // pairs of keys: those of an object with 20,000
constexpr int EAGLE_MAX_SCHEMA_DEPTH = 1000;              // nested references, and optional properties of an object
constexpr size_t EAGLE_MAX_SCHEMA_NAME = 4096;            // length of a property name or reference
constexpr int64_t EAGLE_MAX_SCHEMA_COUNT = 2000;  // items or characters; the maximum number of repetitions in a grammar
constexpr std::chrono::seconds EAGLE_SCHEMA_TIME(2);

// Calls visit(c) for each bracket and colon of a JSON text outside its strings. Returns true if the text ends inside a
// string.
template <typename Visit>
bool eagle_visit_marks(const std::string & json, const Visit & visit) {
    bool quoted = false;
    for (size_t i = 0; i < json.size(); i++) {
        const char c = json[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{' || c == ']' || c == '}' || c == ':') {
            visit(c);
        }
    }
    return quoted;
}

// Returns what would make a JSON text too expensive to read; empty if nothing does. The reader compares each key with
// those before it in its object.
inline std::string eagle_json_excess(const std::string & json) {
    std::vector<int64_t> n_keys;  // of the arrays and objects that are open
    int64_t n_compared = 0;
    bool is_deep = false;
    eagle_visit_marks(json, [&](char c) {
        if (c == '[' || c == '{') {
            is_deep = is_deep || n_keys.size() >= EAGLE_MAX_JSON_DEPTH;
            if (!is_deep) {
                n_keys.push_back(0);
            }
        } else if (!n_keys.empty() && c == ':') {
            n_compared += n_keys.back()++;
        } else if (!n_keys.empty()) {
            n_keys.pop_back();
        }
    });
    return is_deep ? "it is nested deeper than " + std::to_string(EAGLE_MAX_JSON_DEPTH) + " levels"
           : n_compared > EAGLE_MAX_JSON_COMPARED ? "its objects have too many keys"
                                                  : "";
}

inline void eagle_require_readable(const std::string & json) {
    const std::string excess = eagle_json_excess(json);
    if (!excess.empty()) {
        throw std::runtime_error(excess);
    }
}

// Limits the text for regular expressions that recurse over every character.
inline void eagle_require_schema_name(const std::string & name) {
    if (name.size() > EAGLE_MAX_SCHEMA_NAME) {
        throw std::invalid_argument("a name in the schema is longer than " + std::to_string(EAGLE_MAX_SCHEMA_NAME) +
                                    " bytes");
    }
}

// Refuses bounds in the wrong order: a grammar would turn them into a repetition without an end.
inline void eagle_require_order(const std::string & low_key, int64_t low, const std::string & high_key, int64_t high) {
    if (low > high) {
        throw std::invalid_argument(low_key + " " + std::to_string(low) + " is above " + high_key + " " +
                                    std::to_string(high));
    }
}

// Returns a part of a reference as the key that it names.
inline std::string eagle_unescaped(const std::string & part) {
    const auto is_hex = [&](size_t at) {
        return at < part.size() && std::isxdigit(static_cast<unsigned char>(part[at]));
    };
    std::string key;
    for (size_t i = 0; i < part.size(); i++) {
        if (part[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
            key += static_cast<char>(std::stoi(part.substr(i + 1, 2), nullptr, 16));
            i += 2;
            continue;
        }
        const bool is_escape = part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1');
        key += !is_escape ? part[i] : part[i + 1] == '1' ? '/' : '~';
        i += is_escape;
    }
    return key;
}

// Returns the name of the rule of a reference: no two references share one.
inline std::string eagle_reference_rule(const std::string & reference) {
    std::string name = "ref";
    for (const char c : reference) {
        const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-';
        name += is_plain   ? std::string(1, c)
                : c == '/' ? "-"
                           : "-x" + std::to_string(static_cast<unsigned char>(c)) + "-";
    }
    return name;
}

// Returns the grammar rule of a pattern.
inline std::string eagle_pattern(const std::string & pattern) {
    std::string rule(1 << 20, '\0');
    if (pattern.find('\0') != std::string::npos) {
        throw std::invalid_argument("a pattern holds a null character: write \\x00");
    }
    if (eagle_pattern_rule(pattern.c_str(), rule.data(), rule.size()) != EAGLE_OK) {
        throw std::invalid_argument(eagle_last_error());
    }
    rule.resize(std::char_traits<char>::length(rule.c_str()));
    return rule;
}

// Counts one level of recursion over a schema while the object exists. The outermost one starts the time limit.
class eagle_schema_level {
  public:
    eagle_schema_level() {
        if (depth() == 0) {
            start() = std::chrono::steady_clock::now();
        }
        if (depth() == EAGLE_MAX_SCHEMA_DEPTH) {
            throw std::invalid_argument("the schema is nested deeper than " + std::to_string(EAGLE_MAX_SCHEMA_DEPTH) +
                                        " levels");
        }
        if (std::chrono::steady_clock::now() - start() > EAGLE_SCHEMA_TIME) {
            throw std::invalid_argument("the schema takes more than " + std::to_string(EAGLE_SCHEMA_TIME.count()) +
                                        " s");
        }
        depth()++;
    }
    ~eagle_schema_level() { depth()--; }

    bool is_outermost() const { return depth() == 1; }

    // Returns true for the name of a property "", which is that of the outermost schema too.
    bool is_unnamed(const std::string & name) const { return name.empty() && depth() > 1; }

    eagle_schema_level(const eagle_schema_level &) = delete;
    eagle_schema_level & operator=(const eagle_schema_level &) = delete;

  private:
    static int & depth() {
        static thread_local int value = 0;
        return value;
    }
    static std::chrono::steady_clock::time_point & start() {
        static thread_local std::chrono::steady_clock::time_point value;
        return value;
    }
};
