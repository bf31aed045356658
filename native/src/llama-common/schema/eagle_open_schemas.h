// Schemas of tools: no fault of theirs refuses a request. What a grammar cannot express of them is left open and noted.
#pragma once

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "eagle_chat.h"
#include "eagle_sampler.h"
#include "eagle_schema.h"
#include "eagle_unenforced.h"
#include "json-schema-to-grammar.h"
#include "json.h"

// What is left open in a schema. Each step leaves more open than the one before.
enum class eagle_opening {
    none,    // nothing: a fault is refused
    faults,  // keys with faults
    limits,  // all but types, names and listed values
    values,  // all but the names of an object's properties
    all,     // everything: any object
};

// While the object exists, schemas that this thread reads are left open.
class eagle_open_schemas {
  public:
    explicit eagle_open_schemas(eagle_opening opening) : before_(opening_of_thread()) { opening_of_thread() = opening; }
    ~eagle_open_schemas() { opening_of_thread() = before_; }
    eagle_open_schemas(const eagle_open_schemas &) = delete;
    eagle_open_schemas & operator=(const eagle_open_schemas &) = delete;

    static eagle_opening opening() { return opening_of_thread(); }
    static bool is_on() { return opening() != eagle_opening::none; }

  private:
    static eagle_opening & opening_of_thread() {
        static thread_local eagle_opening value = eagle_opening::none;
        return value;
    }

    eagle_opening before_;
};

// Throws for a fault of a schema, or notes that the grammar does not enforce `what`.
inline void eagle_refuse_or_open(const std::string & what, const std::string & fault) {
    if (!eagle_open_schemas::is_on()) {
        throw std::invalid_argument(fault);
    }
    eagle_note_unenforced(what);
}

// Returns an object's schema with less than it states, as an opening says. is_root: of all arguments of a call.
inline common_json eagle_reduced(const common_json & schema, eagle_opening opening, bool is_root) {
    if (opening < eagle_opening::limits || !schema.is_object()) {
        return schema;
    }
    common_json found = common_json::object();
    if (opening == eagle_opening::limits) {
        for (const char * key :
             {"type", "nullable", "properties", "required", "items", "enum", "const", "anyOf", "oneOf"}) {
            if (schema.contains(key)) {
                found[key] = schema.at(key);
            }
        }
        return found;
    }
    if (is_root) {
        found["type"] = "object";
    }
    const bool has_names = schema.contains("properties") && schema.at("properties").is_object();
    if (is_root && has_names && opening == eagle_opening::values) {
        found["properties"] = common_json::object();
        for (const auto & property : schema.at("properties").items()) {
            found["properties"][property.key()] = common_json::object();
        }
    }
    return found;
}

// Returns a schema whose parts allow anything.
inline common_json eagle_hollow(const common_json & schema) {
    const auto any = [](const common_json & part) {
        return part.is_object() ? common_json(common_json::object()) : part;
    };
    common_json hollow = schema;
    for (const char * key : {"items", "prefixItems", "additionalProperties", "properties", "anyOf", "oneOf", "allOf"}) {
        if (!schema.contains(key)) {
            continue;
        }
        const common_json & parts = schema.at(key);
        if (std::string(key) == "properties" && parts.is_object()) {
            for (const auto & part : parts.items()) {
                hollow[key][part.key()] = common_json::object();
            }
        } else if (parts.is_array()) {
            hollow[key] = common_json(std::vector<common_json>(parts.size(), common_json::object()));
        } else {
            hollow[key] = any(parts);
        }
    }
    return hollow;
}

// Throws unless the references of a schema lead to another one.
template <typename Resolve>
void eagle_require_reference(const common_json & given, const Resolve & resolve) {
    const common_json * schema = &given;
    for (int i = 0; schema->is_object() && schema->contains("$ref"); i++) {
        const std::string reference = schema->at("$ref").get<std::string>();
        if (i == EAGLE_MAX_SCHEMA_DEPTH || (reference != "#" && reference.compare(0, 2, "#/") != 0)) {
            throw std::invalid_argument("$ref leads to no schema of the same document");
        }
        schema = &resolve(reference);
    }
}

// Returns what a grammar can express of a schema. Of one with faults these are its keys in their order, without those
// that have a fault, alone or next to the keys before. read(schema): what the converter reads; throws for a fault.
template <typename Read>
common_json eagle_without_faults(const common_json & given, const Read & read) {
    try {
        return read(given);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {
        if (!given.is_object()) {
            throw;
        }
    }
    common_json kept = common_json::object(), found = common_json::object();
    for (const auto & item : given.items()) {
        common_json more = kept;
        more[item.key()] = item.value();
        try {
            found = read(more);
            kept = more;
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & error) {
            eagle_note_unenforced(item.key(), error.what());
        }
    }
    return found;
}

// Returns make(), with more of the schemas left open until a grammar (grammar_of(result); empty for none) is within the
// limits of grammars. has_fault(): returns true if an exception is the schemas' fault.
template <typename Make, typename GrammarOf, typename HasFault>
auto eagle_opened_until_fit(const Make & make, const GrammarOf & grammar_of, const HasFault & has_fault) {
    const std::string limits = "all limits of these tools' schemas";
    for (auto opening = std::max(eagle_opening::faults, eagle_open_schemas::opening());;
         opening = eagle_opening(int(opening) + 1)) {
        const eagle_open_schemas open(opening);
        const bool is_last = opening == eagle_opening::all;
        try {
            auto made = make();
            const std::string grammar = grammar_of(made);
            if (is_last || grammar.empty() || eagle_grammar_check(nullptr, grammar.c_str(), "root") == EAGLE_OK) {
                return made;
            }
            eagle_note_unenforced(limits, eagle_last_error());
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & error) {
            if (is_last || !has_fault()) {
                throw;
            }
            eagle_note_unenforced(limits, error.what());
        }
    }
}

// Throws unless the schema of a strict function has a grammar.
inline void eagle_require_strict(const common_json & tool) {
    if (!eagle_has(tool, "strict") || tool.at("strict") != true || !eagle_has(tool, "parameters")) {
        return;
    }
    std::string fault;
    try {
        const std::string grammar = json_schema_to_grammar(tool.at("parameters"));
        fault = eagle_grammar_check(nullptr, grammar.c_str(), "root") == EAGLE_OK ? "" : eagle_last_error();
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        fault = error.what();
    }
    eagle_require(fault.empty(), "the tool '" + eagle_text_at(tool, "name") +
                                     "' is strict, but its schema has no grammar (" + fault +
                                     "): correct it, or leave out 'strict'");
}
