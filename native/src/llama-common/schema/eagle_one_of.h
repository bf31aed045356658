// Whether the parts of `oneOf` exclude each other, so that a grammar of alternatives enforces it.
#pragma once

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "eagle_schema.h"
#include "eagle_schema_merge.h"
#include "json.h"

inline const std::set<std::string> & eagle_json_types() {
    static const std::set<std::string> types = {"null", "boolean", "number", "integer", "string", "array", "object"};
    return types;
}

// Returns the values that a schema lists; null if it lists none.
inline common_json eagle_literals(const common_json & schema) {
    if (schema.contains("const")) {
        return common_json::array({schema.at("const")});
    }
    return schema.contains("enum") && schema.at("enum").is_array() ? schema.at("enum") : common_json();
}

// Returns the JSON types that a schema allows; an integer is a number.
inline std::set<std::string> eagle_kinds(const common_json & schema) {
    std::set<std::string> kinds;
    const common_json literals = eagle_literals(schema);
    if (!literals.is_null()) {
        for (const auto & value : literals) {
            kinds.insert(value.is_null()      ? "null"
                         : value.is_boolean() ? "boolean"
                         : value.is_number()  ? "number"
                         : value.is_string()  ? "string"
                         : value.is_array()   ? "array"
                                              : "object");
        }
        return kinds;
    }
    if (!schema.contains("type")) {
        const bool is_object = schema.contains("properties") || schema.contains("required");
        kinds = is_object ? std::set<std::string>{"object"} : eagle_json_types();
    } else if (schema.at("type").is_array()) {
        for (const auto & name : schema.at("type")) {
            kinds.insert(name.is_string() ? name.get<std::string>() : "");
        }
    } else if (schema.at("type").is_string()) {
        kinds.insert(schema.at("type").get<std::string>());
    }
    if (kinds.erase("integer") > 0) {
        kinds.insert("number");
    }
    return kinds;
}

inline std::set<std::string> eagle_required_names(const common_json & schema) {
    std::set<std::string> names;
    for (size_t i = 0; schema.contains("required") && i < schema.at("required").size(); i++) {
        names.insert(schema.at("required").at(i).get<std::string>());
    }
    return names;
}

// Returns a schema, or what its reference names.
template <typename Resolve>
common_json eagle_named_by(common_json schema, const Resolve & resolve) {
    for (int i = 0; i < EAGLE_MAX_REFERENCES && schema.contains("$ref"); i++) {
        schema = common_json(resolve(schema.at("$ref").template get<std::string>()));
    }
    return schema;
}

// Returns true if no value that a grammar allows fits both schemas: by their types, constants or required keys.
template <typename Resolve>
bool eagle_exclude(const common_json & one, const common_json & other, const Resolve & resolve) {
    const eagle_schema_level level;
    const common_json values = eagle_literals(one), others = eagle_literals(other);
    if (!values.is_null() && !others.is_null()) {
        for (const auto & value : values) {
            for (const auto & each : others) {
                if (value == each) {
                    return false;
                }
            }
        }
        return true;
    }
    const std::set<std::string> kinds = eagle_kinds(one), other_kinds = eagle_kinds(other);
    std::set<std::string> all = kinds;
    all.insert(other_kinds.begin(), other_kinds.end());
    if (all.size() == kinds.size() + other_kinds.size()) {
        return true;
    }
    if (all != std::set<std::string>{"object"}) {
        return false;
    }
    const auto has = [](const common_json & schema, const std::string & name) {
        return schema.contains("properties") && schema.at("properties").contains(name);
    };
    const auto is_open = [](const common_json & schema) {
        const bool has_others = schema.contains("additionalProperties") && schema.at("additionalProperties") != false;
        return has_others || !schema.contains("properties") || schema.at("properties").empty();
    };
    const auto needs_other = [&](const std::set<std::string> & names, const common_json & schema) {
        for (const std::string & name : names) {
            if (!has(schema, name)) {
                return true;
            }
        }
        return false;
    };
    const std::set<std::string> names = eagle_required_names(one), other_names = eagle_required_names(other);
    if (!is_open(one) && !is_open(other) && needs_other(names, other) && needs_other(other_names, one)) {
        return true;  // grammars write no other keys
    }
    for (const std::string & name : names) {
        if (other_names.count(name) > 0 && has(one, name) && has(other, name) &&
            eagle_exclude(eagle_named_by(one.at("properties").at(name), resolve),
                          eagle_named_by(other.at("properties").at(name), resolve), resolve)) {
            return true;
        }
    }
    return false;
}

// Returns true if no value that a grammar allows fits two parts of `oneOf`.
template <typename Resolve>
bool eagle_is_one_only(const common_json & schema, const Resolve & resolve) {
    common_json siblings = common_json::object();
    for (const auto & item : schema.items()) {
        if (item.key() != "oneOf" && eagle_is_constraint(item.key())) {
            siblings[item.key()] = item.value();
        }
    }
    try {
        std::vector<common_json> parts;
        for (const auto & part : schema.at("oneOf")) {
            parts.push_back(eagle_merged(siblings, eagle_named_by(part, resolve)));
        }
        for (size_t i = 0; i < parts.size(); i++) {
            for (size_t j = 0; j < i; j++) {
                if (!eagle_exclude(parts[i], parts[j], resolve)) {
                    return false;
                }
            }
        }
        return true;
    } catch (const std::exception &) {
        return false;
    }
}
