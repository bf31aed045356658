// The C interface of JSON schemas (eagle_chats.h).
#include <string>
#include <vector>

#include "eagle_chat.h"
#include "eagle_chats.h"
#include "eagle_result.h"
#include "eagle_schema_follow.h"
#include "json-schema-to-grammar.h"

namespace {

std::string grammar_of(const common_json & schema) {
    try {
        return json_schema_to_grammar(schema, true);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        throw std::invalid_argument(std::string("the JSON schema cannot be turned into a grammar (") + error.what() +
                                    ")");
    }
}

common_json parameters_of(const common_json & function) {
    const bool has_some =
        function.contains("parameters") && function.at("parameters").is_object() && !function.at("parameters").empty();
    return has_some ? function.at("parameters") : common_json{{"type", "object"}};
}

// Lets the references of a schema to itself ("#/...") be valid at `place` in a larger schema.
void move_references(common_json & schema, const std::string & place) {
    for (size_t i = 0; schema.is_array() && i < schema.size(); i++) {
        move_references(schema.at(i), place);
    }
    if (!schema.is_object()) {
        return;
    }
    std::vector<std::string> keys;
    for (const auto & item : schema.items()) {
        keys.push_back(item.key());
    }
    for (const std::string & key : keys) {
        common_json & value = schema.at(key);
        if (key == "$ref" && value.is_string() && value.get<std::string>().compare(0, 1, "#") == 0) {
            value = common_json(place + value.get<std::string>().substr(1));
        } else {
            move_references(value, place);
        }
    }
}

// Returns the grammar of a call. functions: with the schemas of their parameters as far as they are enforced.
std::string grammar_of_calls(const common_json & functions) {
    const eagle_opening opening = eagle_open_schemas::opening();
    const eagle_open_schemas open(eagle_opening::faults);
    if (!functions.is_array()) {
        return grammar_of(eagle_reduced(parameters_of(functions), opening, true));
    }
    common_json calls = common_json::array(), definitions = common_json::object();
    for (const auto & function : functions) {
        const std::string key = std::to_string(calls.size()), place = "#/$defs/" + key;
        common_json parameters = eagle_reduced(parameters_of(function), opening, true);
        move_references(parameters, place);
        definitions[key] = parameters;
        common_json call = common_json::parse(R"({"type": "object", "properties": {"name": {}, "arguments": {}},
                                   "required": ["name", "arguments"]})");
        call["properties"]["name"]["const"] = function.at("name");
        call["properties"]["arguments"]["$ref"] = place;
        calls.push_back(call);
    }
    common_json schema = common_json::object();
    schema["anyOf"] = calls;
    schema["$defs"] = definitions;
    return grammar_of(schema);
}

template <typename Make>
int32_t converted(const char * given, const char ** result, const Make & make) {
    return eagle_answered(result, [&] {
        const eagle_unenforced_keys unenforced;
        common_json found = common_json::object();
        found["grammar"] = make(common_json::parse(given));
        found["unenforced"] = unenforced.names();
        return found.dump();
    });
}

}  // namespace

int32_t eagle_schema_grammar(const char * schema, const char ** result) {
    return converted(schema, result, [](const common_json & given) { return grammar_of(given); });
}

int32_t eagle_calls_grammar(const char * functions, const char ** result) {
    return converted(functions, result, [](const common_json & given) {
        for (const auto & function : given.is_array() ? given : common_json::array({given})) {
            eagle_require_strict(function);
        }
        return eagle_opened_until_fit([&] { return grammar_of_calls(given); },
                                      [](const std::string & grammar) { return grammar; }, [] { return true; });
    });
}
