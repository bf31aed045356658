// Tools of OpenAI's Responses API. Custom tools and those of namespaces become functions, and calls of them get the
// form that the API gives them.
#pragma once

#include <string>

#include "eagle_chat.h"
#include "json.h"
#include "log.h"

// Returns the name of a namespace's function as the model knows it.
inline std::string eagle_name_in(const std::string & name_space, const std::string & name) {
    const bool has_end = name_space.size() > 1 && name_space.compare(name_space.size() - 2, 2, "__") == 0;
    return name_space.empty() ? name : name_space + (has_end ? "" : "__") + name;
}

// Returns true for the tools of OpenAI's servers that Codex sends by default.
inline bool eagle_is_hosted(const common_json & tool) {
    const std::string type = eagle_text_at(tool, "type");
    return type.compare(0, 10, "web_search") == 0 || type == "image_generation";
}

inline void eagle_add_tool(common_json & functions, const common_json & tool, const std::string & name_space) {
    const std::string type = eagle_text_at(tool, "type");
    if (type == "namespace") {
        for (const auto & each : tool.value("tools", common_json::array())) {
            eagle_add_tool(functions, each, eagle_name_in(name_space, eagle_text_at(tool, "name")));
        }
        return;
    }
    if (eagle_is_hosted(tool)) {
        LOG_WRN("a tool of type '%s' is ignored: this server runs no tools\n", type.c_str());
        return;
    }
    eagle_require(!type.empty(), "a tool has no 'type'");
    eagle_require(type == "function" || type == "custom",
                  "a tool has the type '" + type + "', which this server does not know: leave it out");
    common_json function = {{"type", "function"}, {"strict", false}};  // llama.cpp's default is true
    for (const auto & item : tool.items()) {
        if (type == "function" || item.key() == "description") {
            function[item.key()] = item.value();
        }
    }
    function["name"] = eagle_name_in(name_space, eagle_text_at(tool, "name"));
    if (type == "custom") {
        const common_json input = {{"input", common_json{{"type", "string"}}}};
        function["parameters"] =
            common_json{{"type", "object"}, {"properties", input}, {"required", common_json::array({"input"})}};
    }
    functions.push_back(function);
}

// Returns the tools of a request as functions.
inline common_json eagle_functions_of(const common_json & tools) {
    eagle_require(tools.is_array(), "'tools' is no list");
    common_json functions = common_json::array();
    for (const auto & tool : tools) {
        eagle_add_tool(functions, tool, "");
    }
    return functions;
}

// Gives a tool_choice the names of functions as the model knows them, and removes tools that are ignored.
inline void eagle_name_choice(common_json & choice) {
    if (eagle_has(choice, "namespace")) {
        choice["name"] = eagle_name_in(eagle_text_at(choice, "namespace"), eagle_text_at(choice, "name"));
    }
    if (!eagle_has(choice, "tools") || !choice.at("tools").is_array()) {
        return;
    }
    common_json kept = common_json::array();
    for (auto tool : choice.at("tools")) {
        if (!eagle_is_hosted(tool)) {
            eagle_name_choice(tool);
            kept.push_back(tool);
        }
    }
    if (kept.empty() && choice.at("tools").size() > 0 && eagle_text_at(choice, "type") == "allowed_tools") {
        eagle_require(eagle_text_at(choice, "mode") != "required",
                      "'tool_choice' requires tools that are ignored here");
        choice = "none";
        return;
    }
    choice["tools"] = kept;
}

// A tool of a request.
struct eagle_named_tool {
    std::string name_space;
    std::string name;
    bool is_custom = false;
};

// Returns the tool that the model knows as `name`. tools: as the request has them.
inline eagle_named_tool eagle_tool_named(const common_json & tools, const std::string & name,
                                         const std::string & name_space = "") {
    for (size_t i = 0; tools.is_array() && i < tools.size(); i++) {
        const common_json & tool = tools.at(i);
        const std::string own = eagle_text_at(tool, "name");
        if (eagle_text_at(tool, "type") == "namespace") {
            const std::string inner = eagle_name_in(name_space, own);
            const auto found = eagle_tool_named(tool.value("tools", common_json::array()), name, inner);
            if (!found.name_space.empty()) {
                return found;
            }
        } else if (eagle_name_in(name_space, own) == name) {
            return {name_space, own, eagle_text_at(tool, "type") == "custom"};
        }
    }
    return {"", name, false};
}
