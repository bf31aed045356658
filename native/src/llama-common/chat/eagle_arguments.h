// Grammar rules for call arguments that a template writes as text between tags: the constants of their schemas.
#pragma once

#include <string>
#include <vector>

#include "eagle_chat.h"
#include "json-schema-to-grammar.h"
#include "json-schema.h"

constexpr int EAGLE_MAX_TEXT_REFERENCES = 16;  // maximum number of references to follow

// Returns the rule of a constant: strings without quotes, other values as JSON.
inline std::string eagle_constant_rule(const common_json & value) {
    return gbnf_format_literal(value.is_string() ? value.get<std::string>() : value.dump());
}

inline std::string eagle_text_rule(const common_chat_schema & schema, int n_references = 0);

// Returns the rule of alternatives; empty if one of them may be any text.
inline std::string eagle_alternatives_rule(const std::vector<common_chat_schema_ptr> & children, int n_references) {
    std::string rule;
    for (const auto & child : children) {
        const std::string next = eagle_text_rule(*child, n_references);
        if (next.empty()) {
            return "";
        }
        rule += (rule.empty() ? "" : " | ") + next;
    }
    return rule;
}

// Returns the rule of the texts that a schema allows; empty if they are not all constants.
inline std::string eagle_text_rule(const common_chat_schema & schema, int n_references) {
    switch (schema.kind()) {
    case common_chat_schema::KIND_CONST:
        return eagle_constant_rule(static_cast<const common_chat_schema_const &>(schema).value);
    case common_chat_schema::KIND_ENUM: {
        std::string rule;
        for (const auto & value : static_cast<const common_chat_schema_enum &>(schema).values) {
            rule += (rule.empty() ? "" : " | ") + eagle_constant_rule(value);
        }
        return rule;
    }
    case common_chat_schema::KIND_NULL:
        return "\"null\"";
    case common_chat_schema::KIND_BOOLEAN:
        return "\"true\" | \"false\"";
    case common_chat_schema::KIND_ANY_OF:
        return eagle_alternatives_rule(static_cast<const common_chat_schema_any_of &>(schema).children, n_references);
    case common_chat_schema::KIND_ALL_OF:  // the constants of one part suffice: values that the other parts forbid make
                                           // the schema contradictory
        for (const auto & child : static_cast<const common_chat_schema_all_of &>(schema).children) {
            const std::string rule = eagle_text_rule(*child, n_references);
            if (!rule.empty()) {
                return rule;
            }
        }
        return "";
    case common_chat_schema::KIND_REF: {
        const auto * target = static_cast<const common_chat_schema_ref &>(schema).target;
        return target && n_references < EAGLE_MAX_TEXT_REFERENCES ? eagle_text_rule(*target, n_references + 1) : "";
    }
    default:
        return "";
    }
}

// Returns the parser of a text argument, including `close`, restricted to the constants of its schema.
template <typename Builder, typename Parser>
Parser eagle_text_argument(Builder & p, const Parser & argument, const common_chat_schema & schema,
                           const std::string & close = "") {
    const std::string rule = schema.may_be_string() ? eagle_text_rule(schema) : "";
    if (rule.empty()) {
        return argument;
    }
    return p.gbnf(argument, "(" + rule + ")" + (close.empty() ? "" : " " + gbnf_format_literal(close)));
}
