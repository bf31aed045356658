// OpenAI's functions, which preceded tools: requests with them become requests with tools, and calls become
// function_call again.
#pragma once

#include <cstdio>
#include <string>

#include "eagle_chat.h"
#include "json.h"

constexpr const char * EAGLE_HAS_FUNCTIONS = "eagle_functions";  // key of a request that had functions

// Converts answers with a function_call, and messages of the role "function", which follow them.
inline void eagle_read_function_messages(common_json & messages) {
    std::string id;
    for (size_t i = 0; messages.is_array() && i < messages.size(); i++) {
        common_json & message = messages.at(i);
        if (eagle_has(message, "function_call") && !eagle_has(message, "tool_calls")) {
            char text[16];
            std::snprintf(text, sizeof(text), "call%05d", (int) (i % 100000));  // the form that all templates accept
            id = text;
            common_json call = {{"id", id}, {"type", "function"}};
            call["function"] = message.at("function_call");
            message["tool_calls"] = common_json::array({call});
        }
        if (message.is_object()) {
            message.erase("function_call");
        }
        if (eagle_text_at(message, "role") == "function") {
            message["role"] = "tool";
            message["tool_call_id"] = id;
        }
    }
}

inline common_json eagle_tool_choice_of(const common_json & choice) {
    if (!choice.is_object()) {
        return choice;
    }
    common_json found = {{"type", "function"}};
    found["function"] = choice;
    return found;
}

inline void eagle_read_functions(common_json & body) {
    if (eagle_has(body, "messages")) {
        eagle_read_function_messages(body.at("messages"));
    }
    const common_json functions = body.value("functions", common_json::array());
    eagle_require(functions.is_array(), "'functions' is no list");
    eagle_require(functions.empty() || !eagle_has(body, "tools"), "'functions' and 'tools' exclude each other");
    eagle_require(!functions.empty() || !eagle_has(body, "function_call") || body.at("function_call") == "none",
                  "'function_call' has no 'functions'");
    if (!functions.empty()) {
        common_json tools = common_json::array();
        for (const auto & function : functions) {
            tools.push_back(common_json{{"type", "function"}, {"function", function}});
        }
        body["tools"] = tools;
        body["parallel_tool_calls"] = false;
        body[EAGLE_HAS_FUNCTIONS] = true;
        if (body.contains("function_call")) {
            body["tool_choice"] = eagle_tool_choice_of(body.at("function_call"));
        }
    }
    body.erase("functions");
    body.erase("function_call");
}

// Gives the call in a choice of an answer the form of functions. Such an answer has at most one call.
inline void eagle_write_function_call(common_json & choice) {
    for (const char * key : {"message", "delta"}) {
        if (eagle_has(choice, key) && eagle_has(choice.at(key), "tool_calls")) {
            common_json & message = choice.at(key);
            message["function_call"] = message.at("tool_calls").front().at("function");
            message.erase("tool_calls");
        }
    }
    if (eagle_text_at(choice, "finish_reason") == "tool_calls") {
        choice["finish_reason"] = "function_call";
    }
}
