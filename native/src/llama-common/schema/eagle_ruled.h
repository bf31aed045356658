// Schemas with a grammar rule of their own, the key "gbnf": bounded numbers and patterns, whose rules are written in
// Python (bindings/llama_eagle/sessions/schemas).
#pragma once

#include <memory>
#include <string>

#include "json-schema.h"
#include "json.h"

struct eagle_ruled {
    std::string eagle_rule;
    virtual ~eagle_ruled() = default;
};

template <typename Node>
struct eagle_ruled_node : Node, eagle_ruled {};

// Returns the node of a schema with a rule; null for others.
inline common_chat_schema_ptr eagle_ruled_schema(const common_json & schema) {
    if (!schema.is_object() || !schema.contains("gbnf")) {
        return nullptr;
    }
    const auto with_rule = [&](auto node) -> common_chat_schema_ptr {
        node->eagle_rule = schema.at("gbnf").get<std::string>();
        return node;
    };
    const std::string type = schema.at("type").get<std::string>();
    return type == "integer"  ? with_rule(std::make_unique<eagle_ruled_node<common_chat_schema_integer>>())
           : type == "number" ? with_rule(std::make_unique<eagle_ruled_node<common_chat_schema_number>>())
                              : with_rule(std::make_unique<eagle_ruled_node<common_chat_schema_string>>());
}
