// Parameters and tools that would change an answer, but that this server does not support: a request with them is
// refused by name. docs/server.md lists those that are ignored. Throws std::invalid_argument.
#pragma once

#include <initializer_list>
#include <string>

#include "eagle_chat.h"
#include "json.h"

// Refuses keys whose values request something.
inline void eagle_refuse_keys(const common_json & body, std::initializer_list<const char *> keys) {
    for (const char * key : keys) {
        const bool is_idle = !eagle_has(body, key) || body.at(key) == false || body.at(key) == "" ||
                             ((body.at(key).is_object() || body.at(key).is_array()) && body.at(key).empty());
        eagle_require(is_idle, "this server does not support '" + std::string(key) + "': leave it out");
    }
}

inline void eagle_require_effort(const common_json & owner, const std::string & key) {
    eagle_require(!eagle_has(owner, key) || owner.at(key).is_string(), "'" + key + "' is no text");
}

// Checks a request of OpenAI's Chat Completions API.
inline void eagle_require_chat_parameters(const common_json & body) {
    eagle_require(!eagle_has(body, "web_search_options"),
                  "this server searches no web: leave out 'web_search_options'");
    eagle_refuse_keys(body, {"audio"});
    eagle_require_effort(body, "reasoning_effort");
    if (eagle_has(body, "modalities") && body.at("modalities") != common_json::array({"text"})) {
        eagle_require(body.at("modalities").is_array() && body.at("modalities").empty(),
                      "'modalities' is " + body.at("modalities").dump() + ", but this server writes text alone");
    }
}

// Checks a request of OpenAI's Responses API.
inline void eagle_require_response_parameters(const common_json & body) {
    eagle_refuse_keys(body, {"background", "conversation", "previous_response_id", "prompt", "context_management"});
    eagle_require(!eagle_has(body, "instructions") || body.at("instructions").is_string(), "'instructions' is no text");
    for (const char * key : {"reasoning", "text"}) {
        eagle_require(!eagle_has(body, key) || body.at(key).is_object(), "'" + std::string(key) + "' is no object");
    }
    eagle_require_effort(body.value("reasoning", common_json::object()), "effort");
    const std::string truncation = eagle_text_at(body, "truncation");
    eagle_require(truncation.empty() || truncation == "auto" || truncation == "disabled",
                  "'truncation' is '" + truncation + "', which is not auto or disabled");
    eagle_require(!eagle_has(body, "top_logprobs") || body.at("top_logprobs") == 0,
                  "answers of this API have no probabilities: leave out 'top_logprobs', or use /v1/chat/completions");
    eagle_require(!eagle_has(body, "include") || body.at("include").is_array(), "'include' is no list");
    for (const auto & name : body.value("include", common_json::array())) {
        eagle_require(name != "message.output_text.logprobs",
                      "answers of this API have no probabilities: leave 'message.output_text.logprobs' out of 'include'"
                      ", or use /v1/chat/completions");
    }
}

// Checks a request of Anthropic's Messages API.
inline void eagle_require_message_parameters(const common_json & body) {
    eagle_refuse_keys(body, {"container", "mcp_servers"});
    if (eagle_has(body, "thinking")) {
        const std::string type = eagle_text_at(body.at("thinking"), "type");
        eagle_require(type == "enabled" || type == "disabled" || type == "adaptive",
                      "'thinking' has the type '" + type + "', which is not enabled, disabled or adaptive");
        const common_json & thinking = body.at("thinking");
        eagle_require(!eagle_has(thinking, "budget_tokens") || thinking.at("budget_tokens").is_number_integer(),
                      "'thinking.budget_tokens' is no whole number");
    }
    for (const char * key : {"context_management", "output_config"}) {
        eagle_require(!eagle_has(body, key) || body.at(key).is_object(), "'" + std::string(key) + "' is no object");
    }
    eagle_require_effort(body.value("output_config", common_json::object()), "effort");
    const common_json context = body.value("context_management", common_json::object());
    for (const auto & edit : context.value("edits", common_json::array())) {
        const std::string type = eagle_text_at(edit, "type");  // templates clear earlier thoughts themselves
        eagle_require(type.compare(0, 15, "clear_thinking_") == 0,
                      "'context_management' has an edit of type '" + type + "', which this server does not support");
    }
    if (!eagle_has(body, "tools")) {
        return;
    }
    eagle_require(body.at("tools").is_array(), "'tools' is no list");
    for (const auto & tool : body.at("tools")) {
        const std::string type = eagle_text_at(tool, "type");
        eagle_require(type.empty() || type == "custom" || type == "function",
                      "the tool '" + eagle_text_at(tool, "name") + "' has the type '" + type +
                          "', which this server does not know: leave it out, or describe it with an input_schema");
        eagle_require_strict(tool, "input_schema");
    }
}
