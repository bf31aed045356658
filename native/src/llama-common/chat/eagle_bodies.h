// Converts bodies of Anthropic's Messages API and OpenAI's Responses API to the form that llama.cpp's converters
// expect. Throws std::invalid_argument for parts without an equivalent.
#pragma once

#include <string>

#include "eagle_chat.h"
#include "json.h"

// Removes top-level keys with the value null.
inline common_json eagle_without_nulls(const common_json & body) {
    common_json found = common_json::object();
    for (const auto & item : body.items()) {
        if (!item.value().is_null()) {
            found[item.key()] = item.value();
        }
    }
    return found;
}

// Returns the response_format of {"type": "json_schema", "schema": ...}.
inline void eagle_read_format(common_json & body, const common_json & owner, const std::string & name) {
    if (!eagle_has(owner, name)) {
        return;
    }
    const common_json & format = owner.at(name);
    const std::string type = eagle_text_at(format, "type");
    eagle_require(type == "text" || type == "json_object" || type == "json_schema",
                  name + ".type '" + type + "' is not text, json_object or json_schema");
    if (type == "json_schema") {
        eagle_require(eagle_has(format, "schema"), name + " has no schema");
        common_json schema = common_json::object();
        schema["schema"] = format.at("schema");
        body["response_format"] = common_json{{"type", type}, {"json_schema", schema}};
    } else if (type == "json_object") {
        body["response_format"] = common_json{{"type", type}};
    }
}

// --- Responses API ---------------------------------------------------------------------------------------------------

// Returns the text of a reasoning item: its content or its summary; empty without either.
inline std::string eagle_reasoning_of(const common_json & item) {
    for (const char * key : {"content", "summary"}) {
        std::string text;
        if (eagle_has(item, key) && item.at(key).is_array()) {
            for (const auto & part : item.at(key)) {
                text += (text.empty() ? "" : "\n") + eagle_text_at(part, "text");
            }
        }
        if (!text.empty()) {
            return text;
        }
    }
    return "";
}

inline void eagle_read_item(common_json & item) {
    const bool is_answer = eagle_text_at(item, "role") == "assistant";
    if (is_answer) {
        item["type"] = "message";
    }
    if (eagle_text_at(item, "type") == "reasoning") {
        common_json text = common_json{{"type", "reasoning_text"}};
        text["text"] = eagle_reasoning_of(item);
        item["content"] = common_json::array({text});
        item["summary"] = common_json::array();
    }
    if (eagle_has(item, "role") && item.contains("content")) {
        eagle_name_parts(item["content"], is_answer ? "output_text" : "input_text");
    }
    if (eagle_has(item, "output")) {
        eagle_name_parts(item["output"], "input_text");
    }
}

inline common_json eagle_responses_body(const common_json & given) {
    common_json body = eagle_without_nulls(given);
    if (eagle_has(body, "text")) {
        eagle_read_format(body, body.at("text"), "format");
        body.erase("text");
    }
    if (eagle_has(body, "input") && body.at("input").is_array()) {
        common_json items = common_json::array();
        for (auto item : body.at("input")) {
            if (eagle_text_at(item, "type") == "reasoning" && eagle_reasoning_of(item).empty()) {
                continue;
            }
            if (item.is_object()) {
                eagle_read_item(item);
            }
            items.push_back(item);
        }
        body["input"] = items;
    }
    if (eagle_has(body, "top_logprobs")) {
        body["logprobs"] = true;  // this API has no such key
    }
    return body;
}

// --- Messages API ----------------------------------------------------------------------------------------------------

// Returns the text of a document block.
inline std::string eagle_document(const common_json & block) {
    const common_json source = eagle_has(block, "source") ? block.at("source") : common_json::object();
    const std::string type = eagle_text_at(source, "type");
    std::string text = eagle_text_at(source, "data");
    if (type == "content" && eagle_has(source, "content")) {
        text = eagle_text_of(source.at("content"));
    }
    eagle_require(type == "text" || type == "content",
                  "a document of type '" + type + "' cannot be read: send its text");
    const std::string title = eagle_text_at(block, "title");
    return title.empty() ? text : title + "\n" + text;
}

// Returns the blocks of a message or of a tool's result. Text documents become text blocks.
inline common_json eagle_read_blocks(const common_json & blocks, const std::string & where) {
    common_json found = common_json::array();
    for (auto block : blocks) {
        const std::string type = eagle_text_at(block, "type");
        if (type == "document") {
            block = common_json{{"type", "text"}, {"text", eagle_document(block)}};
        } else if (type == "tool_result" && eagle_has(block, "content") && block.at("content").is_array()) {
            block["content"] = eagle_read_blocks(block.at("content"), where);
        } else {
            eagle_require(type == "text" || type == "thinking" || type == "redacted_thinking" || type == "image" ||
                              type == "tool_use" || type == "tool_result",
                          where + " has a block of type '" + type + "', which this server does not read");
        }
        found.push_back(block);
    }
    return found;
}

inline common_json eagle_messages_body(const common_json & given) {
    common_json body = eagle_without_nulls(given);
    eagle_require(body.contains("messages"), "'messages' is required");
    common_json & messages = body.at("messages");
    eagle_require(messages.is_array(), "'messages' is no list");
    for (size_t i = 0; i < messages.size(); i++) {
        if (eagle_has(messages.at(i), "content") && messages.at(i).at("content").is_array()) {
            messages.at(i)["content"] =
                eagle_read_blocks(messages.at(i).at("content"), "message " + std::to_string(i + 1));
        }
    }
    eagle_read_format(body, body, "output_format");
    if (eagle_has(body, "output_config")) {
        eagle_read_format(body, body.at("output_config"), "format");
    }
    if (eagle_has(body, "thinking") && eagle_text_at(body.at("thinking"), "type") == "disabled") {
        common_json & options = body["chat_template_kwargs"];
        options = options.is_object() ? options : common_json::object();
        if (!options.contains("enable_thinking")) {
            options["enable_thinking"] = false;
        }
    }
    return body;
}

// Copies the settings of llama.cpp that the converted body does not have yet; every API accepts them.
inline void eagle_keep_settings(const common_json & body, common_json & converted) {
    for (const auto & item : body.items()) {
        const std::string & key = item.key();
        const bool is_read = key == "system" || key == "messages" || key == "tools" || key == "tool_choice" ||
                             key == "stop_sequences" || key == "max_completion_tokens" || key == "metadata" ||
                             key == "thinking" || key == "output_config" || key == "output_format";
        if (!is_read && key != "n" && key != "n_cmpl" && !converted.contains(key)) {
            converted[key] = item.value();
        }
    }
}
