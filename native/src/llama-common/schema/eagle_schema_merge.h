// Merges the constraints of several JSON schemas for one value: those next to $ref, oneOf or anyOf, and the parts of
// allOf. Throws std::invalid_argument for constraints that cannot be combined.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "eagle_open_schemas.h"
#include "eagle_unenforced.h"
#include "json.h"

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
        eagle_refuse_or_open("type", "the types " + one.dump() + " and " + other.dump() + " exclude each other");
        return one;
    }
    return common.size() > 1 ? common : common_json(common.at(0));
}

// Applies the additionalProperties of a schema to the properties that the other one adds. A required one remains, since
// otherwise there would be no answer.
inline void eagle_limit_others(const common_json & schema, const common_json & other, common_json & merged) {
    const bool is_limited = schema.contains("additionalProperties") && schema.at("additionalProperties") == false;
    if (!is_limited || !other.contains("properties") || schema.contains("patternProperties")) {
        return;
    }
    const common_json required = merged.value("required", common_json::array());
    for (const auto & property : other.at("properties").items()) {
        if (schema.contains("properties") && schema.at("properties").contains(property.key())) {
            continue;
        }
        if (std::find(required.begin(), required.end(), common_json(property.key())) == required.end()) {
            merged["properties"][property.key()] = false;
        } else {
            eagle_note_unenforced("additionalProperties for keys that another part of the schema requires");
        }
    }
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
                const bool is_one = own.is_object() && property.value().is_object();
                own = is_one && own != property.value() ? eagle_merged(own, property.value())
                      : own == false || (property.value() == true && !own.is_null()) ? own
                                                                                     : property.value();
            }
        } else if (key == "required" && value.is_array() && merged.at(key).is_array()) {
            for (const auto & name : value) {
                merged[key].push_back(name);
            }
        } else if (key == "enum" && value.is_array() && merged.at(key).is_array()) {
            common_json common = common_json::array();
            for (const auto & each : value) {
                const common_json & own = merged.at(key);
                if (std::find(own.begin(), own.end(), each) != own.end()) {
                    common.push_back(each);
                }
            }
            merged[key] = common;
        } else if (key == "type") {
            merged[key] = eagle_common_type(one.at(key), value);
        } else if (are_numbers && (key.compare(0, 3, "min") == 0 || key == "exclusiveMinimum")) {
            merged[key] = is_larger ? value : merged.at(key);
        } else if (are_numbers && (key.compare(0, 3, "max") == 0 || key == "exclusiveMaximum")) {
            merged[key] = is_larger ? merged.at(key) : value;
        } else if (key == "additionalProperties" && (value.is_boolean() || merged.at(key).is_boolean())) {
            merged[key] = value == false || merged.at(key) == true ? value : merged.at(key);
        } else if (eagle_is_constraint(key)) {
            eagle_refuse_or_open(key, "two values of " + key + " in parts of one schema are not supported: merge them");
        }
    }
    eagle_limit_others(one, other, merged);
    eagle_limit_others(other, one, merged);
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

// Returns the schema with the parts of allOf merged; null if there are none, or if several have alternatives, whose
// properties the converter then merges.
template <typename Resolve>
common_json eagle_without_all_of(const common_json & given, const Resolve & resolve) {
    common_json schema = given;
    for (int i = 0; i < EAGLE_MAX_REFERENCES; i++) {
        if (!schema.is_object() || !schema.contains("allOf")) {
            return i == 0 ? common_json() : schema;
        }
        common_json merged = schema;
        merged.erase("allOf");
        int n_alternatives = int(merged.contains("anyOf") + merged.contains("oneOf"));
        for (const auto & given_part : schema.at("allOf")) {
            common_json part = eagle_without_siblings(given_part, resolve);
            part = part.is_null() ? given_part : part;
            for (int j = 0; j < EAGLE_MAX_REFERENCES && part.is_object() && part.contains("$ref"); j++) {
                part = resolve(part.at("$ref").template get<std::string>());
            }
            if (part.is_object()) {
                n_alternatives += int(part.contains("anyOf") + part.contains("oneOf"));
                if (n_alternatives > 1) {
                    return i == 0 ? common_json() : schema;
                }
                merged = eagle_merged(merged, part);
            }
        }
        schema = merged;
    }
    throw std::invalid_argument("a part of allOf refers to itself: write its keys into the definition");
}
