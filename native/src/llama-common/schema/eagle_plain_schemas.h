// Schemas of tools in the form that every chat template reads: templates fail for some valid ones, and for faulty ones.
#pragma once

#include <string>

#include "eagle_one_of.h"
#include "eagle_schema_follow.h"
#include "json.h"

constexpr int EAGLE_MAX_SHOWN_LEVELS = 20;  // of a schema; templates recurse into them

// Returns the first type of a schema but null; empty if it has none.
inline std::string eagle_first_type(const common_json & schema) {
    const common_json given = schema.contains("type") ? schema.at("type") : common_json();
    const common_json names = given.is_array() ? given : common_json::array({given});
    for (const auto & each : names) {
        const std::string name = each.is_string() ? eagle_type_name(each.get<std::string>()) : "";
        if (name != "null" && eagle_json_types().count(name) > 0) {
            return name;
        }
    }
    return "";
}

// Returns a schema with one type and with the keys that templates read in their usual form.
inline common_json eagle_plain_schema(const common_json & schema, int n_levels = EAGLE_MAX_SHOWN_LEVELS) {
    common_json plain = common_json::object();
    if (!schema.is_object() || n_levels == 0) {
        return plain;
    }
    const std::string type = eagle_first_type(schema);
    if (!type.empty()) {
        plain["type"] = type;
    }
    if (schema.contains("description") && schema.at("description").is_string()) {
        plain["description"] = schema.at("description");
    }
    if (schema.contains("enum") && schema.at("enum").is_array() && !schema.at("enum").empty()) {
        plain["enum"] = schema.at("enum");
    }
    if (type == "object" || schema.contains("properties")) {
        plain["properties"] = common_json::object();
        plain["required"] = common_json::array();
    }
    if (schema.contains("properties") && schema.at("properties").is_object()) {
        for (const auto & property : schema.at("properties").items()) {
            plain["properties"][property.key()] = eagle_plain_schema(property.value(), n_levels - 1);
        }
    }
    for (size_t i = 0; schema.contains("required") && schema.at("required").is_array() && plain.contains("required") &&
                       i < schema.at("required").size();
         i++) {
        if (schema.at("required").at(i).is_string()) {
            plain["required"].push_back(schema.at("required").at(i));
        }
    }
    if (type == "array") {
        plain["items"] =
            eagle_plain_schema(schema.contains("items") ? schema.at("items") : common_json(), n_levels - 1);
    }
    return plain;
}
