// Rewrites schemas to what llama.cpp's converter follows: constraints next to $ref, oneOf or anyOf, required properties
// without a schema, large bounds. Throws std::invalid_argument for constraints that cannot be combined.
// bindings/llama_eagle/generation/schema.py has the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "json.h"
#include "log.h"

constexpr int EAGLE_MAX_REFERENCES = 100;  // that lead to each other with further constraints

inline bool eagle_is_constraint(const std::string & key) {
    static const std::vector<std::string> keys = {"$ref",
                                                  "oneOf",
                                                  "anyOf",
                                                  "allOf",
                                                  "const",
                                                  "enum",
                                                  "type",
                                                  "format",
                                                  "pattern",
                                                  "items",
                                                  "minItems",
                                                  "maxItems",
                                                  "minimum",
                                                  "maximum",
                                                  "required",
                                                  "minLength",
                                                  "maxLength",
                                                  "prefixItems",
                                                  "properties",
                                                  "multipleOf",
                                                  "additionalProperties",
                                                  "exclusiveMinimum",
                                                  "exclusiveMaximum"};
    return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Returns the types that both allow, a name or a list of them. An integer is a number, too.
inline common_json eagle_common_type(const common_json & one, const common_json & other) {
    const auto names = [](const common_json & given) {
        std::vector<std::string> found;
        if (given.is_string()) {
            found.push_back(given.get<std::string>());
        } else if (given.is_array()) {
            for (const auto & each : given) {
                found.push_back(each.is_string() ? each.get<std::string>() : each.dump());
            }
        }
        if (std::find(found.begin(), found.end(), "number") != found.end()) {
            found.push_back("integer");
        }
        return found;
    };
    common_json common = common_json::array();
    const std::vector<std::string> others = names(other);
    for (const std::string & name : names(one)) {
        if (std::find(others.begin(), others.end(), name) != others.end()) {
            common.push_back(name);
        }
    }
    if (common.empty()) {
        throw std::invalid_argument("the types " + one.dump() + " and " + other.dump() + " exclude each other");
    }
    return common.size() > 1 ? common : common_json(common.at(0));
}

// Returns a schema with the constraints of both.
inline common_json eagle_merged(const common_json & one, const common_json & other) {
    common_json merged = one;
    for (const auto & item : other.items()) {
        const std::string & key = item.key();
        const common_json & value = item.value();
        const bool is_new = !merged.contains(key) || merged.at(key) == value;
        const bool are_numbers = !is_new && value.is_number() && merged.at(key).is_number();
        const bool is_larger = are_numbers && value.get<double>() > merged.at(key).get<double>();
        if (is_new) {
            merged[key] = value;
        } else if (key == "properties" && value.is_object() && merged.at(key).is_object()) {
            for (const auto & property : value.items()) {
                common_json & own = merged[key][property.key()];
                own = own.is_null() || own == property.value() ? property.value() : eagle_merged(own, property.value());
            }
        } else if (key == "required" && value.is_array() && merged.at(key).is_array()) {
            for (const auto & name : value) {
                merged[key].push_back(name);
            }
        } else if (key == "type") {
            merged[key] = eagle_common_type(one.at(key), value);
        } else if (are_numbers && (key.compare(0, 3, "min") == 0 || key == "exclusiveMinimum")) {
            merged[key] = is_larger ? value : merged.at(key);
        } else if (are_numbers && (key.compare(0, 3, "max") == 0 || key == "exclusiveMaximum")) {
            merged[key] = is_larger ? merged.at(key) : value;
        } else if (eagle_is_constraint(key)) {
            throw std::invalid_argument("two values of " + key +
                                        " in parts of one schema are not supported: merge them");
        }
    }
    return merged;
}

// Returns the schema without constraints next to a reference or alternatives; null if there are none. resolve(text)
// returns what a reference names.
template <typename Resolve>
common_json eagle_without_siblings(const common_json & given, const Resolve & resolve) {
    common_json schema = given;
    for (int i = 0; i < EAGLE_MAX_REFERENCES; i++) {
        const std::string key = !schema.is_object()        ? ""
                                : schema.contains("$ref")  ? "$ref"
                                : schema.contains("oneOf") ? "oneOf"
                                : schema.contains("anyOf") ? "anyOf"
                                                           : "";
        common_json siblings = common_json::object();
        if (!key.empty()) {
            for (const auto & item : schema.items()) {
                if (item.key() != key && eagle_is_constraint(item.key())) {
                    siblings[item.key()] = item.value();
                }
            }
        }
        if (siblings.empty()) {
            return i == 0 ? common_json() : schema;
        }
        if (key != "$ref") {
            common_json merged = common_json::array();
            for (const auto & part : schema.at(key)) {
                merged.push_back(part.is_object() ? eagle_merged(siblings, part) : siblings);
            }
            common_json alternatives = common_json::object();
            alternatives[key] = merged;
            return alternatives;
        }
        const common_json & definition = resolve(schema.at("$ref").get<std::string>());
        common_json more = common_json::object();
        for (const auto & item : siblings.items()) {
            if (!definition.is_object() || !definition.contains(item.key()) ||
                definition.at(item.key()) != item.value()) {
                more[item.key()] = item.value();
            }
        }
        if (more.empty()) {
            common_json bare = common_json::object();
            bare["$ref"] = schema.at("$ref");
            return bare;
        }
        schema = definition.is_object() ? eagle_merged(definition, more) : more;
    }
    throw std::invalid_argument("a $ref with other keys refers to itself: write the keys into the definition");
}

// Logs once per process that a grammar does not enforce something.
inline void eagle_note_unenforced(const std::string & what) {
    static std::mutex mutex;
    static std::set<std::string> noted;
    const std::lock_guard<std::mutex> lock(mutex);
    if (noted.insert(what).second) {
        LOG_WRN("schema: the grammar does not enforce %s\n", what.c_str());
    }
}

// Returns the bounds that a grammar cannot hold: beyond 2^62 the conversion and its sums would overflow.
inline std::vector<std::string> eagle_bounds_beyond(const common_json & schema) {
    std::vector<std::string> found;
    for (const char * key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
        if (schema.contains(key) && schema.at(key).is_number() && !(std::abs(schema.at(key).get<double>()) <= 0x1p62)) {
            found.push_back(key);
        }
    }
    return found;
}

// Returns the required names of an object that are not among its properties.
inline std::vector<std::string> eagle_undescribed(const common_json & schema) {
    std::vector<std::string> found;
    const bool is_object = schema.contains("type") ? schema.at("type") == "object" : schema.contains("properties");
    if (!is_object || !schema.contains("required") || !schema.at("required").is_array()) {
        return found;
    }
    for (const auto & name : schema.at("required")) {
        const bool is_described = name.is_string() && schema.contains("properties") &&
                                  schema.at("properties").contains(name.get<std::string>());
        if (name.is_string() && !is_described) {
            found.push_back(name.get<std::string>());
        }
    }
    return found;
}

// Returns a schema that the converter follows completely, apart from the keys that it names in the log; null if `given`
// is one. resolve(text) returns what a reference names.
template <typename Resolve>
common_json eagle_followed(const common_json & given, const Resolve & resolve) {
    common_json merged = eagle_without_siblings(given, resolve);
    const common_json & schema = merged.is_null() ? given : merged;
    if (!schema.is_object()) {
        return merged;
    }
    for (const char * key : {"not", "patternProperties", "propertyNames", "minProperties", "maxProperties",
                             "uniqueItems", "contains", "dependentRequired", "dependentSchemas", "if"}) {
        if (schema.contains(key) && schema.at(key) != false) {
            eagle_note_unenforced(key);
        }
    }
    const std::vector<std::string> bounds = eagle_bounds_beyond(schema);
    const std::vector<std::string> names = eagle_undescribed(schema);
    if (bounds.empty() && names.empty()) {
        return merged;
    }
    common_json followed = schema;
    for (const std::string & key : bounds) {
        eagle_note_unenforced(key + " " + schema.at(key).dump());
        followed.erase(key);
    }
    const common_json others =
        schema.contains("additionalProperties") ? schema.at("additionalProperties") : common_json(true);
    for (const std::string & name : names) {
        if (others == false) {
            throw std::invalid_argument("required names '" + name + "', which is no property: add it to properties");
        }
        followed["properties"][name] = others.is_object() ? others : common_json::object();
    }
    return followed;
}
