// Rewrites JSON schemas to what llama.cpp's converter follows, and refuses by name what it would misread. Throws
// std::invalid_argument.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "eagle_number_rules.h"
#include "eagle_one_of.h"
#include "eagle_open_schemas.h"
#include "eagle_schema.h"
#include "eagle_schema_merge.h"
#include "eagle_unenforced.h"
#include "eagle_values.h"
#include "json.h"

// Returns JSON's name of a type, which clients also give in Python's words.
inline std::string eagle_type_name(const std::string & name) {
    static const std::map<std::string, std::string> names = {
        {"float", "number"}, {"double", "number"}, {"int", "integer"}, {"bool", "boolean"}, {"str", "string"},
        {"dict", "object"},  {"list", "array"},    {"tuple", "array"}, {"None", "null"},    {"NoneType", "null"}};
    const auto found = names.find(name);
    return found == names.end() ? name : found->second;
}

// Reads the types of a schema. Throws for names that JSON does not have.
inline void eagle_read_types(common_json & schema) {
    if (!schema.contains("type")) {
        return;
    }
    const common_json given = schema.at("type");
    const bool is_list = given.is_array();
    common_json names = common_json::array();
    for (size_t i = 0; i < (is_list ? given.size() : 1); i++) {
        const common_json & each = is_list ? given.at(i) : given;
        const std::string name = each.is_string() ? eagle_type_name(each.get<std::string>()) : "";
        if (eagle_json_types().count(name) == 0) {
            throw std::invalid_argument("type " + given.dump().substr(0, 50) +
                                        " is not one of null, boolean, number, integer, string, array, object");
        }
        names.push_back(name);
    }
    if (names.empty()) {
        throw std::invalid_argument("type [] is not one of null, boolean, number, integer, string, array, object");
    }
    schema["type"] = is_list ? names : common_json(names.at(size_t(0)));
}

inline void eagle_require_lists(const common_json & schema) {
    for (const auto & [key, words] : std::vector<std::pair<std::string, std::string>>{{"required", "a list of names"},
                                                                                      {"enum", "a list"},
                                                                                      {"allOf", "a list of schemas"},
                                                                                      {"anyOf", "a list of schemas"},
                                                                                      {"oneOf", "a list of schemas"}}) {
        if (schema.contains(key) && !schema.at(key).is_array()) {
            throw std::invalid_argument(key + " must be " + words + ", not " + schema.at(key).dump().substr(0, 50));
        }
    }
    if (schema.contains("properties") && !schema.at("properties").is_object()) {
        throw std::invalid_argument("properties must be an object, not " +
                                    schema.at("properties").dump().substr(0, 50));
    }
    if (schema.contains("prefixItems") && schema.contains("items") && schema.at("items") != false) {
        throw std::invalid_argument("prefixItems with items is not supported: leave one out");
    }
}

// Refuses a minimum that no grammar counts, and removes such a maximum, which answers do not reach.
inline void eagle_limit_count(common_json & schema, const std::string & low, const std::string & high) {
    const auto is_above = [&](const std::string & key) {
        return schema.contains(key) && schema.at(key).is_number() &&
               schema.at(key).get<int64_t>() > EAGLE_MAX_SCHEMA_COUNT;
    };
    if (is_above(low)) {
        throw std::invalid_argument(low + " " + schema.at(low).dump() + " is above " +
                                    std::to_string(EAGLE_MAX_SCHEMA_COUNT) + ", the most that a grammar counts");
    }
    if (is_above(high)) {
        schema.erase(high);
    }
}

// Reads counts of items and characters, which may be floats such as 2.0.
inline void eagle_read_counts(common_json & schema) {
    for (const char * kind : {"Items", "Length"}) {
        const std::string low = std::string("min") + kind, high = std::string("max") + kind;
        for (const std::string & key : {low, high}) {
            if (schema.contains(key) && schema.at(key).is_number()) {
                const double count = schema.at(key).get<double>();
                if (!(count >= 0 && count == std::floor(count))) {
                    throw std::invalid_argument(key + " must be a non-negative integer");
                }
                schema[key] = int64_t(std::min(count, 1e15));
            }
        }
        if (schema.contains(low) && schema.contains(high) && schema.at(low).is_number() &&
            schema.at(high).is_number()) {
            eagle_require_order(low, schema.at(low).get<int64_t>(), high, schema.at(high).get<int64_t>());
        }
        eagle_limit_count(schema, low, high);
    }
}

// Refuses a length that the converter ignores because of a pattern or a format, or leaves it open.
inline void eagle_require_lengths(const common_json & schema) {
    const int64_t low = schema.value("minLength", int64_t(0)), high = schema.value("maxLength", int64_t(-1));
    if (schema.contains("pattern") && (low > 0 || high > 0)) {
        const std::string key = low > 0 ? "minLength" : "maxLength";
        eagle_refuse_or_open(key, "pattern with " + key + " is not supported: write the length into the pattern");
    }
    const std::string format =
        schema.contains("format") && schema.at("format").is_string() ? schema.at("format").get<std::string>() : "";
    static const std::map<std::string, std::pair<int, int>> lengths = {
        {"date", {10, 10}}, {"time", {9, 18}}, {"date-time", {20, 29}}, {"uuid", {36, 36}}};
    const auto found = lengths.find(format.compare(0, 4, "uuid") == 0 ? "uuid" : format);
    if (found != lengths.end() && (low > found->second.first || (high >= 0 && high < found->second.second))) {
        const std::string key = low > 0 ? "minLength" : "maxLength";
        eagle_refuse_or_open(key, "format " + format + " with " + key + " is not supported: leave one out");
    }
    if (found == lengths.end() && !format.empty() && schema.value("type", common_json()) == "string") {
        eagle_note_unenforced("format " + format);
    }
}

// Adds the type that counts or bounds imply, if no other key determines it.
inline void eagle_add_type(common_json & schema) {
    for (const char * key : {"$ref", "oneOf", "anyOf", "const", "enum", "pattern", "type", "allOf", "properties",
                             "additionalProperties", "items", "prefixItems", "format"}) {
        if (schema.contains(key)) {
            return;
        }
    }
    for (const auto & [key, type] : std::vector<std::pair<std::string, std::string>>{{"minItems", "array"},
                                                                                     {"maxItems", "array"},
                                                                                     {"minLength", "string"},
                                                                                     {"maxLength", "string"},
                                                                                     {"minimum", "number"},
                                                                                     {"maximum", "number"},
                                                                                     {"exclusiveMinimum", "number"},
                                                                                     {"exclusiveMaximum", "number"},
                                                                                     {"multipleOf", "number"}}) {
        if (schema.contains(key)) {
            schema["type"] = type;
            return;
        }
    }
    if (schema.contains("required")) {
        schema["type"] = "object";
    }
}

// Adds required names without a property, and removes properties that are not allowed.
inline void eagle_complete_properties(common_json & schema) {
    const bool has_keys = schema.contains("properties") || schema.contains("additionalProperties");
    const bool is_object = schema.contains("type") ? schema.at("type") == "object" : has_keys;
    if (!is_object || schema.contains("$ref") || schema.contains("allOf")) {
        return;
    }
    const common_json others =
        schema.contains("additionalProperties") ? schema.at("additionalProperties") : common_json(true);
    const bool has_properties = schema.contains("properties");
    common_json properties = common_json::object();
    std::set<std::string> forbidden;
    if (has_properties) {
        for (const auto & item : schema.at("properties").items()) {
            if (item.value() == false) {
                forbidden.insert(item.key());
            } else {
                properties[item.key()] = item.value();
            }
        }
    }
    bool is_changed = !forbidden.empty();
    for (size_t i = 0; schema.contains("required") && i < schema.at("required").size(); i++) {
        const common_json & name = schema.at("required").at(i);
        const std::string key = name.is_string() ? name.get<std::string>() : "";
        if (!name.is_string() || properties.contains(key)) {
            continue;
        }
        if (forbidden.count(key) > 0 || others == false) {
            throw std::invalid_argument("required key '" + key.substr(0, 50) +
                                        "' is not allowed by the properties: correct the schema");
        }
        properties[key] = others.is_object() ? others : common_json::object();
        is_changed = true;
    }
    if (is_changed && !has_properties) {
        schema["additionalProperties"] = others;
    }
    if (is_changed) {
        schema["properties"] = properties;
    }
}

// Leaves out items that maxItems or `false` exclude.
inline void eagle_read_items(common_json & schema) {
    const bool has_first = schema.contains("prefixItems") && schema.at("prefixItems").is_array();
    if (has_first) {
        common_json kept = common_json::array();
        for (const auto & each : schema.at("prefixItems")) {
            if ((int64_t) kept.size() < schema.value("maxItems", EAGLE_MAX_SCHEMA_COUNT)) {
                kept.push_back(each);
            }
        }
        schema["prefixItems"] = kept;
        schema.erase("items");
    } else if (schema.contains("items") && schema.at("items") == false) {
        schema.erase("items");
        schema["type"] = "array";
        schema["maxItems"] = 0;
    }
}

// Refuses long names, for which the converter's regular expressions recurse.
inline void eagle_require_names(const common_json & schema) {
    if (schema.contains("$ref") && schema.at("$ref").is_string()) {
        eagle_require_schema_name(schema.at("$ref").get<std::string>());
    }
    if (schema.contains("properties") && schema.at("properties").is_object()) {
        for (const auto & item : schema.at("properties").items()) {
            eagle_require_schema_name(item.key());
        }
    }
}

// Returns a schema that the converter follows completely, apart from the keys that it notes as not enforced.
// resolve(text) returns what a reference names.
template <typename Resolve>
common_json eagle_followed(const common_json & given, const Resolve & resolve) {
    if (!given.is_object()) {
        return given == true ? common_json::object() : given;
    }
    common_json schema = given;
    eagle_read_types(schema);
    eagle_require_lists(schema);
    if (schema.contains("oneOf") && !eagle_is_one_only(schema, resolve)) {
        eagle_note_unenforced("oneOf");
    }
    for (const auto & simplify :
         {eagle_without_siblings<Resolve>, eagle_without_all_of<Resolve>, eagle_without_siblings<Resolve>}) {
        const common_json simple = simplify(schema, resolve);
        schema = simple.is_null() ? schema : simple;
    }
    if (schema.contains("allOf")) {
        eagle_note_unenforced("allOf");
    }
    for (const char * key :
         {"not", "patternProperties", "propertyNames", "minProperties", "maxProperties", "uniqueItems", "contains",
          "minContains", "maxContains", "dependencies", "dependentRequired", "dependentSchemas", "if",
          "unevaluatedItems", "unevaluatedProperties"}) {
        if (schema.contains(key) && schema.at(key) != false && schema.at(key) != 0) {
            eagle_note_unenforced(key);
        }
    }
    eagle_read_types(schema);
    eagle_choose_values(schema, [](const std::string & key) { eagle_note_unenforced(key); });
    eagle_read_counts(schema);
    eagle_add_type(schema);
    eagle_require_lengths(schema);
    eagle_complete_properties(schema);
    eagle_read_items(schema);
    eagle_require_names(schema);
    return schema;
}

// Returns the node of a schema. build(schema): makes it from what eagle_followed returns. In schemas that are left open
// a part never throws, so that its owner is built once: build keeps pointers to nodes.
template <typename Resolve, typename Build>
common_chat_schema_ptr eagle_built(const common_json & given, const Resolve & resolve, const Build & build) {
    const auto node_of = [&](const common_json & schema) {
        auto number = eagle_bounded_number(schema);
        return number ? std::move(number) : build(schema);
    };
    if (!eagle_open_schemas::is_on()) {
        const eagle_schema_level level;
        return node_of(eagle_followed(given, resolve));
    }
    const auto checked = [&](const common_json & schema) {
        const common_json followed = eagle_followed(schema, resolve);
        eagle_require_reference(followed, resolve);
        if (followed.contains("pattern")) {
            eagle_pattern(followed.at("pattern").get<std::string>());
        }
        if (!followed.contains("$ref")) {
            node_of(eagle_hollow(followed));
        }
        return followed;
    };
    try {
        const eagle_schema_level level;
        const common_json schema = eagle_reduced(given, eagle_open_schemas::opening(), level.is_outermost());
        return node_of(eagle_without_faults(schema, checked));
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        eagle_note_unenforced("a part of a schema", error.what());
        return build(common_json::object());
    }
}
