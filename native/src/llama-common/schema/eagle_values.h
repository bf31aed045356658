// Values of a JSON schema (enum, const) next to other keys: those that the other keys allow.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "json.h"

inline bool eagle_has_type(const common_json & value, const std::string & name) {
    const bool is_whole = value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    return name == "null"      ? value.is_null()
           : name == "boolean" ? value.is_boolean()
           : name == "string"  ? value.is_string()
           : name == "array"   ? value.is_array()
           : name == "object"  ? value.is_object()
           : name == "integer" ? is_whole
                               : value.is_number();
}

// Returns true if a value has a schema's type, bounds, lengths and required keys.
inline bool eagle_fits(const common_json & value, const common_json & schema) {
    if (schema.contains("type")) {
        const common_json & type = schema.at("type");
        bool has_one = schema.value("nullable", common_json(false)) == true && value.is_null();
        for (size_t i = 0; i < (type.is_array() ? type.size() : 1); i++) {
            has_one = has_one || eagle_has_type(value, (type.is_array() ? type.at(i) : type).get<std::string>());
        }
        if (!has_one) {
            return false;
        }
    }
    if (value.is_object() && schema.contains("required")) {
        for (const auto & name : schema.at("required")) {
            if (name.is_string() && !value.contains(name.get<std::string>())) {
                return false;
            }
        }
    }
    const auto is_within = [&](double number, const std::string & low, const std::string & high, bool is_open) {
        const auto bound = [&](const std::string & key, double other) {
            return schema.contains(key) && schema.at(key).is_number() ? schema.at(key).get<double>() : other;
        };
        const double least = bound(low, -INFINITY), most = bound(high, INFINITY);
        return is_open ? least < number && number < most : least <= number && number <= most;
    };
    if (value.is_number()) {
        const double number = value.get<double>();
        return is_within(number, "minimum", "maximum", false) &&
               is_within(number, "exclusiveMinimum", "exclusiveMaximum", true);
    }
    if (value.is_string()) {
        const std::string text = value.get<std::string>();
        const auto is_first = [](char byte) { return (byte & 0xC0) != 0x80; };
        return is_within((double) std::count_if(text.begin(), text.end(), is_first), "minLength", "maxLength", false);
    }
    return !value.is_array() || is_within((double) value.size(), "minItems", "maxItems", false);
}

// Leaves the values that the other keys allow, and removes these keys. note(key) receives a key that is not enforced: a
// pattern, or all if no value has them.
template <typename Note>
void eagle_choose_values(common_json & schema, const Note & note) {
    const bool is_one = schema.contains("const");
    if (!is_one && !schema.contains("enum")) {
        return;
    }
    common_json kept = common_json::array();
    for (const auto & value : is_one ? common_json::array({schema.at("const")}) : schema.at("enum")) {
        if (eagle_fits(value, schema)) {
            kept.push_back(value);
        }
    }
    for (const char * key : {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength",
                             "maxLength", "minItems", "maxItems", "required", "pattern", "format"}) {
        if (schema.contains(key)) {
            if (kept.empty() || std::string(key) == "pattern") {
                note(key);
            }
            schema.erase(key);
        }
    }
    if (!is_one && !kept.empty()) {
        schema["enum"] = kept;
    }
}
