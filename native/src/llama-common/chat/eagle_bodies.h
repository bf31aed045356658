// Converts bodies of Anthropic's Messages API and OpenAI's Responses API to the form that llama.cpp's converters
// expect. Throws std::invalid_argument for parts without an equivalent.
#pragma once

#include <string>

#include "eagle_answers.h"
#include "eagle_chat.h"
#include "eagle_errors.h"
#include "eagle_functions.h"
#include "eagle_items.h"
#include "eagle_parameters.h"
#include "eagle_response_tools.h"
#include "eagle_results.h"
#include "eagle_tool_changes.h"
#include "json.h"

// Removes Claude Code's line about billing from a system prompt, whose version and hash change with each session:
// everything behind it would be evaluated again.
inline void eagle_drop_billing(common_json & prompt) {
    const std::string billing = "x-anthropic-billing-header:";
    const std::string text = prompt.is_string() ? prompt.get<std::string>() : "";
    if (text.compare(0, billing.size(), billing) == 0) {
        prompt = text.substr(std::min(text.find('\n'), text.size() - 1) + 1);
    }
    if (!prompt.is_array() || prompt.empty()) {
        return;
    }
    common_json kept = common_json::array();
    for (auto part : prompt) {
        const bool has_text = !eagle_text_at(part, "text").empty();
        if (has_text) {
            eagle_drop_billing(part["text"]);
        }
        if (!has_text || part.at("text") != "") {
            kept.push_back(part);
        }
    }
    prompt = kept.empty() ? common_json("") : kept;
}

// Returns a request for a chat, checked, with tools in place of functions.
inline common_json eagle_chat_body(const common_json & given) {
    common_json body = eagle_without_nulls(given);
    eagle_require_chat_parameters(body);
    eagle_read_functions(body);
    if (eagle_has(body, "messages") && body.at("messages").is_array() && !body.at("messages").empty()) {
        common_json & first = body["messages"][0];
        const std::string role = eagle_text_at(first, "role");
        if ((role == "system" || role == "developer") && eagle_has(first, "content")) {
            eagle_drop_billing(first["content"]);
        }
    }
    eagle_require_constraints(body);
    return body;
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

// Completes the arguments of calls that a limit has truncated, so that a client can send its history back.
inline void eagle_repair_calls(common_json & messages) {
    for (size_t i = 0; messages.is_array() && i < messages.size(); i++) {
        if (!eagle_has(messages.at(i), "tool_calls") || !messages.at(i).at("tool_calls").is_array()) {
            continue;
        }
        common_json & calls = messages.at(i).at("tool_calls");
        for (size_t j = 0; j < calls.size(); j++) {
            if (!eagle_has(calls.at(j), "function")) {
                continue;
            }
            common_json & function = calls.at(j).at("function");
            const std::string text = eagle_text_at(function, "arguments");
            const size_t begin = text.find_first_not_of(" \t\r\n");
            const bool is_begun = begin != std::string::npos && text[begin] == '{';
            if (is_begun && common_json::parse_no_throw(text).is_discarded()) {
                function["arguments"] = eagle_arguments_of(text).dump();
            }
        }
    }
}

// Removes a header at the beginning of a text. Returns true if the text had it.
inline bool eagle_drop_header(std::string & text, const std::string & header) {
    const bool has_header = text.compare(0, header.size(), header) == 0;
    text.erase(0, has_header ? header.size() : 0);
    return has_header;
}

// Moves the beginning of an answer of gpt-oss out of its channels, which the template writes itself: thoughts, and
// text. Answers with other channels remain.
inline void eagle_read_channels(common_json & body, common_json & last, std::string text) {
    const std::string end = "<|end|>";
    eagle_drop_header(text, "<|start|>assistant");
    if (eagle_drop_header(text, "<|channel|>final<|message|>")) {
        last["content"] = text;
        return;
    }
    if (!eagle_drop_header(text, "<|channel|>analysis<|message|>")) {
        return;
    }
    const size_t n_thoughts = text.find(end);
    std::string rest = n_thoughts == std::string::npos ? "" : text.substr(n_thoughts + end.size());
    eagle_drop_header(rest, "<|start|>assistant");
    if (!eagle_drop_header(rest, "<|channel|>final<|message|>") && !rest.empty()) {
        return;
    }
    last["reasoning_content"] = text.substr(0, n_thoughts);
    last["content"] = rest;
    if (n_thoughts != std::string::npos) {
        body["continue_final_message"] = "content";
        body["add_generation_prompt"] = false;
    }
}

// Moves the thoughts of a last answer that is continued to the place where templates that write them read them:
// otherwise an empty thought would precede them.
inline void eagle_read_prefill(common_json & body, bool continues_answers, const std::string & chat_template) {
    common_json & last = body.at("messages").back();
    const bool is_continued = eagle_continues(body, continues_answers);
    const std::string open = "<think>";
    const std::string close = "</think>";
    const std::string text = eagle_has(last, "content") ? eagle_text_of(last.at("content")) : "";
    if (!is_continued || eagle_text_at(last, "role") != "assistant" || eagle_has(last, "reasoning_content")) {
        return;
    }
    if (chat_template.find("<|channel|>analysis<|message|>") != std::string::npos) {
        eagle_read_channels(body, last, text);
        return;
    }
    if (text.compare(0, open.size(), open) != 0 || chat_template.find(open) == std::string::npos) {
        return;
    }
    const auto without_lines = [](const std::string & part) {
        return part.substr(std::min(part.find_first_not_of('\n'), part.size()));
    };
    const size_t end = text.find(close);
    const bool is_closed = end != std::string::npos;
    std::string thoughts = without_lines(text.substr(open.size(), is_closed ? end - open.size() : end));
    if (is_closed) {  // templates end thoughts with a line
        thoughts.resize(thoughts.find_last_not_of('\n') + 1);
    }
    last["reasoning_content"] = thoughts;
    last["content"] = is_closed ? without_lines(text.substr(end + close.size())) : "";
    if (is_closed) {  // llama.cpp would continue the thoughts if nothing follows them
        body["continue_final_message"] = "content";
        body["add_generation_prompt"] = false;
    }
}

// Checks and completes the messages of a request. options: of the server. Invalidates references into the body.
template <typename Options>
void eagle_read_conversation(common_json & body, const Options & options, const std::string & chat_template) {
    eagle_repair_calls(body.at("messages"));
    eagle_read_results(body.at("messages"), {options.allow_image, options.allow_audio, options.allow_video});
    eagle_read_messages(body);
    eagle_read_prefill(body, options.prefill_assistant, chat_template);
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

// Converts calls of custom tools, whose input is a text, to calls of functions.
inline void eagle_read_custom_call(common_json & item) {
    if (eagle_text_at(item, "type") == "custom_tool_call") {
        item["type"] = "function_call";
        item["arguments"] = common_json{{"input", eagle_text_at(item, "input")}}.dump();
    } else if (eagle_text_at(item, "type") == "custom_tool_call_output") {
        item["type"] = "function_call_output";
    }
    if (eagle_has(item, "namespace")) {
        item["name"] = eagle_name_in(eagle_text_at(item, "namespace"), eagle_text_at(item, "name"));
    }
    if (eagle_has(item, "arguments") && item.at("arguments").is_object()) {
        item["arguments"] = item.at("arguments").dump();
    }
    if (!eagle_text_at(item, "call_id").empty()) {
        item["call_id"] = eagle_bare_id(eagle_text_at(item, "call_id"));
    }
}

inline void eagle_require_item(const common_json & item, size_t number) {
    const std::string where = "input item " + std::to_string(number);
    eagle_require(item.is_object(), where + " is no object");
    const std::string type = eagle_text_at(item, "type");
    const bool is_compaction = type.find("compaction") != std::string::npos;
    eagle_require(type.empty() || type == "message" || type == "reasoning" || type == "function_call" ||
                      type == "function_call_output",
                  where + " has the type '" + type +
                      "', which this server does not read: " + (is_compaction ? EAGLE_COMPACTION : "leave it out"));
    const auto require_text = [&](const char * key) {
        eagle_require(eagle_has(item, key) && item.at(key).is_string(),
                      where + " has no text '" + std::string(key) + "'");
    };
    const auto require_content = [&](const char * key) {
        eagle_require(eagle_has(item, key) && (item.at(key).is_string() || item.at(key).is_array()),
                      where + " has no '" + std::string(key) + "' that is a text or a list");
        for (size_t i = 0; item.at(key).is_array() && i < item.at(key).size(); i++) {
            const std::string part = eagle_text_at(item.at(key).at(i), "type");
            eagle_require(part == "input_text" || part == "output_text" || part == "input_image",
                          where + " has a part of type '" + part + "', which this server does not read");
        }
    };
    if (type.empty() || type == "message") {
        const std::string role = eagle_text_at(item, "role");
        eagle_require(role == "user" || role == "assistant" || role == "system" || role == "developer",
                      where + " has the role '" + role + "', which is not user, assistant, system or developer");
        require_content("content");
    } else if (type != "reasoning") {
        require_text("call_id");
    }
    if (type == "function_call") {
        require_text("name");
        require_text("arguments");
    } else if (type == "function_call_output") {
        require_content("output");
    }
}

inline void eagle_read_item(common_json & item) {
    eagle_read_custom_call(item);
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
        eagle_read_result(item["output"], {});
        eagle_name_parts(item["output"], "input_text");
    }
}

// Joins the thoughts of each answer in its first reasoning item; llama.cpp's converter keeps the last ones only. items:
// that have been read.
inline common_json eagle_with_joined_reasoning(const common_json & items) {
    common_json joined = common_json::array();
    size_t first = 0;  // number of the answer's first reasoning item; 0 if there is none
    std::string thoughts;
    const auto end_answer = [&] {
        if (first > 0) {
            joined.at(first - 1).at("content").at(size_t(0))["text"] = thoughts;
        }
        first = 0;
    };
    for (const auto & item : items) {
        const std::string type = eagle_text_at(item, "type");
        if (type == "reasoning" && first > 0) {
            thoughts += "\n\n" + eagle_reasoning_of(item);
            continue;
        }
        if (type != "reasoning" && type != "function_call" && eagle_text_at(item, "role") != "assistant") {
            end_answer();
        }
        joined.push_back(item);
        if (type == "reasoning") {
            first = joined.size();
            thoughts = eagle_reasoning_of(item);
        }
    }
    end_answer();
    return joined;
}

// Returns the fields of a request that the response repeats. Clients of this API require them.
inline common_json eagle_repeated_fields(const common_json & given) {
    common_json fields = {
        {"background", false},
        {"error", nullptr},
        {"incomplete_details", nullptr},
        {"instructions", nullptr},
        {"max_output_tokens", nullptr},
        {"max_tool_calls", nullptr},
        {"metadata", common_json::object()},
        {"parallel_tool_calls", true},
        {"previous_response_id", nullptr},
        {"prompt_cache_key", nullptr},
        {"reasoning", common_json{{"effort", nullptr}, {"summary", nullptr}}},
        {"safety_identifier", nullptr},
        {"service_tier", "default"},
        {"store", false},
        {"temperature", nullptr},
        {"text", common_json{{"format", common_json{{"type", "text"}}}}},
        {"tool_choice", "auto"},
        {"tools", common_json::array()},
        {"top_logprobs", 0},
        {"top_p", nullptr},
        {"truncation", "disabled"},
        {"user", nullptr},
    };
    const common_json defaults = fields;
    for (const auto & item : defaults.items()) {
        const std::string & key = item.key();
        if (eagle_has(given, key) && key != "error" && key != "incomplete_details" && key != "store" &&
            key != "background" && key != "truncation" && key != "service_tier") {
            fields[key] = given.at(key);
        }
    }
    if (fields.at("text").is_object() && !fields.at("text").contains("format")) {
        fields.at("text")["format"] = defaults.at("text").at("format");
    }
    return fields;
}

inline common_json eagle_responses_body(const common_json & given) {
    common_json body = eagle_without_nulls(given);
    eagle_require_response_parameters(body);
    body["eagle_response"] = eagle_repeated_fields(given);
    if (eagle_has(body, "tools")) {
        body["tools"] = eagle_functions_of(body.at("tools"));
    }
    if (eagle_has(body, "tool_choice")) {
        eagle_name_choice(body["tool_choice"]);
    }
    if (eagle_has(body, "text")) {
        eagle_read_format(body, body.at("text"), "format");
        body.erase("text");
    }
    if (eagle_has(body, "input") && body.at("input").is_array()) {
        common_json items = common_json::array();
        size_t number = 0;
        for (auto item : body.at("input")) {
            eagle_items::resolve(item, ++number);
            if (eagle_text_at(item, "type") == "reasoning" && eagle_reasoning_of(item).empty()) {
                continue;
            }
            if (item.is_object()) {
                eagle_read_item(item);
            }
            eagle_require_item(item, number);
            items.push_back(item);
        }
        eagle_require(!items.empty(), "'input' is empty: send a text, or at least one item");
        body["input"] = eagle_with_joined_reasoning(items);
    }
    if (eagle_has(body, "instructions") && body.at("instructions") == "") {
        body.erase("instructions");
    }
    for (const char * key : {"top_logprobs", "n", "n_cmpl"}) {  // of chats, not of this API
        body.erase(key);
    }
    return body;
}

// --- Messages API ----------------------------------------------------------------------------------------------------

// Throws unless `content` is a text or a list of text blocks.
inline void eagle_require_texts(const common_json & content, const std::string & where) {
    eagle_require(content.is_string() || content.is_array(), where + " is neither a text nor a list of blocks");
    for (size_t i = 0; content.is_array() && i < content.size(); i++) {
        const std::string type = eagle_text_at(content.at(i), "type");
        eagle_require(type == "text", where + " has a block of type '" + type + "', which this server does not read");
    }
}

// Returns true if a prompt of texts has none: the default of the template applies.
inline bool eagle_is_blank(const common_json & content) {
    for (size_t i = 0; content.is_array() && i < content.size(); i++) {
        if (!eagle_text_at(content.at(i), "text").empty()) {
            return false;
        }
    }
    return !content.is_string() || content.get<std::string>().empty();
}

// Returns the text of a document block.
inline std::string eagle_document(const common_json & block) {
    const common_json source = eagle_has(block, "source") ? block.at("source") : common_json::object();
    const std::string type = eagle_text_at(source, "type");
    eagle_require(type == "text" || type == "content",
                  "a document of type '" + type + "' cannot be read: send its text");
    std::string text = eagle_text_at(source, "data");
    if (type == "content" && eagle_has(source, "content")) {
        eagle_require_texts(source.at("content"), "a document");
        text = eagle_text_of(source.at("content"));
    }
    for (const char * key : {"context", "title"}) {
        const std::string before = eagle_text_at(block, key);
        text = before.empty() ? text : before + "\n" + text;
    }
    return text;
}

// Returns the text of a search result's block.
inline std::string eagle_search_result(const common_json & block) {
    std::string text;
    for (const char * key : {"title", "source"}) {
        text += eagle_text_at(block, key).empty() ? "" : eagle_text_at(block, key) + "\n";
    }
    return text + (eagle_has(block, "content") ? eagle_text_of(block.at("content")) : "");
}

// Returns a block of a tool's result; a text in place of one that is not read.
inline common_json eagle_result_block(const common_json & block) {
    const std::string type = eagle_text_at(block, "type");
    const common_json source = eagle_has(block, "source") ? block.at("source") : common_json();
    const std::string kind = eagle_text_at(source, "type");
    if (type == "text" || (type == "image" && (kind == "url" || kind == "base64"))) {
        return block;
    }
    if (type == "search_result") {
        return eagle_text_part(eagle_search_result(block));
    }
    if (type == "document") {
        try {
            return eagle_text_part(eagle_document(block));
        } catch (const std::invalid_argument &) {
            const std::string media = eagle_text_at(source, "media_type");
            return eagle_unread_part("a document" + (media.empty() ? "" : " (" + media + ")"));
        }
    }
    return eagle_unread_part(type == "image" ? "a picture" : "a block of type '" + type + "'");
}

// Returns the blocks of a tool's result. References to tools become one text with their definitions.
inline common_json eagle_result_blocks(const common_json & blocks, eagle_offered_tools & tools) {
    common_json found = common_json::array();
    std::vector<std::string> names;
    const auto end_references = [&] {
        if (!names.empty()) {
            found.push_back(eagle_text_part(tools.add(names)));
        }
        names.clear();
    };
    for (const auto & block : blocks) {
        if (eagle_text_at(block, "type") == "tool_reference") {
            names.push_back(eagle_text_at(block, "tool_name"));
            continue;
        }
        end_references();
        found.push_back(eagle_result_block(block));
    }
    end_references();
    return found;
}

// Returns a block of a message; throws for one that is not read. Documents, search results and changes of the tools
// become texts.
inline common_json eagle_read_block(common_json block, const std::string & where, eagle_offered_tools & tools) {
    const std::string type = eagle_text_at(block, "type");
    if (type == "document" || type == "search_result") {
        return eagle_text_part(type == "document" ? eagle_document(block) : eagle_search_result(block));
    }
    if (type == "tool_addition" || type == "tool_removal") {
        return eagle_text_part(tools.change(block));
    }
    if (type == "tool_result" && eagle_has(block, "content") && block.at("content").is_array()) {
        block["content"] = eagle_result_blocks(common_json(block.at("content")), tools);
    } else {
        const std::string source =
            type == "image" && eagle_has(block, "source") ? eagle_text_at(block.at("source"), "type") : "url";
        eagle_require(source == "url" || source == "base64",
                      where + " has an image of type '" + source + "', which this server does not read");
        eagle_require(type == "text" || type == "thinking" || type == "redacted_thinking" || type == "image" ||
                          type == "tool_use" || type == "tool_result",
                      where + " has a block of type '" + type + "', which this server does not read");
    }
    for (const char * key : {"id", "tool_use_id"}) {
        if (!eagle_text_at(block, key).empty()) {
            block[key] = eagle_bare_id(eagle_text_at(block, key));
        }
    }
    const std::string input = eagle_text_at(block, "input");
    if (type == "tool_use" && !input.empty() && input[0] == '{') {  // the text of a call, perhaps truncated
        block["input"] = eagle_arguments_of(input);
    }
    return block;
}

// Returns the blocks of a message. tools: those offered before it.
inline common_json eagle_read_blocks(const common_json & blocks, const std::string & where,
                                     eagle_offered_tools & tools) {
    common_json found = common_json::array();
    bool has_thoughts = false;
    for (const auto & given : blocks) {
        common_json block = eagle_read_block(given, where, tools);
        if (!eagle_text_at(block, "thinking").empty()) {  // llama.cpp puts nothing between them
            block["thinking"] = (has_thoughts ? "\n\n" : "") + eagle_text_at(block, "thinking");
            has_thoughts = true;
        }
        found.push_back(block);
    }
    return found;
}

// Splits messages with tool results and other blocks, because llama.cpp moves the results behind the others.
inline common_json eagle_split_results(const common_json & messages) {
    common_json found = common_json::array();
    for (const auto & message : messages) {
        if (!eagle_has(message, "content") || !message.at("content").is_array()) {
            found.push_back(message);
            continue;
        }
        common_json part = message;
        part["content"] = common_json::array();
        bool has_results = false;
        for (const auto & block : message.at("content")) {
            const bool is_result = eagle_text_at(block, "type") == "tool_result";
            if (is_result != has_results && !part.at("content").empty()) {
                found.push_back(part);
                part["content"] = common_json::array();
            }
            has_results = is_result;
            part["content"].push_back(block);
        }
        found.push_back(part);
    }
    return found;
}

// Sets the effort that templates know; they have no word for more than "high".
inline void eagle_read_effort(common_json & body) {
    const std::string effort = eagle_text_at(body.at("output_config"), "effort");
    if (!effort.empty() && !body.contains("reasoning_effort")) {
        body["reasoning_effort"] = effort == "max" || effort == "xhigh" ? "high" : effort;
    }
}

// Makes rules of several texts the first message, because llama.cpp joins the texts without what is between them.
inline void eagle_move_system(common_json & body) {
    if (!eagle_has(body, "system") || !body.at("system").is_array()) {
        return;
    }
    common_json system = common_json{{"role", "system"}};
    system["content"] = body.at("system");
    common_json messages = common_json::array({system});
    for (const auto & message : body.at("messages")) {
        messages.push_back(message);
    }
    body["messages"] = messages;
    body.erase("system");
}

// Gives results of texts their parts back, which llama.cpp has joined without what is between them.
inline void eagle_restore_results(const common_json & body, common_json & converted) {
    std::vector<common_json> contents;
    for (const auto & message : body.at("messages")) {
        for (size_t i = 0;
             eagle_has(message, "content") && message.at("content").is_array() && i < message.at("content").size();
             i++) {
            const common_json & block = message.at("content").at(i);
            if (eagle_text_at(block, "type") == "tool_result") {
                contents.push_back(eagle_has(block, "content") ? block.at("content") : common_json());
            }
        }
    }
    size_t n = 0;
    common_json & messages = converted["messages"];
    for (size_t i = 0; i < messages.size(); i++) {
        if (eagle_text_at(messages.at(i), "role") != "tool" || n == contents.size()) {
            continue;
        }
        const common_json & content = contents[n++];
        const bool is_text = messages.at(i).at("content").is_string();
        if (is_text && content.is_array() && !content.empty()) {
            common_json parts = common_json::array();
            for (const auto & block : content) {
                parts.push_back(common_json{{"type", "text"}, {"text", eagle_text_at(block, "text")}});
            }
            messages.at(i)["content"] = parts;
        }
    }
}

inline common_json eagle_messages_body(const common_json & given) {
    common_json body = eagle_without_nulls(given);
    eagle_require_message_parameters(body);
    eagle_require(body.contains("messages"), "'messages' is required");
    eagle_require(body.at("messages").is_array(), "'messages' is no list");
    if (eagle_has(body, "system")) {
        eagle_require_texts(body.at("system"), "'system'");
        eagle_drop_billing(body["system"]);
        if (eagle_is_blank(body.at("system"))) {
            body.erase("system");
        }
    }
    if (eagle_has(body, "tool_choice") && body.at("tool_choice").is_string()) {
        body["tool_choice"] = common_json{{"type", body.at("tool_choice")}};
    }
    common_json & messages = body.at("messages");
    eagle_offered_tools tools(body.value("tools", common_json()));
    for (size_t i = 0; i < messages.size(); i++) {
        if (eagle_has(messages.at(i), "content") && messages.at(i).at("content").is_array()) {
            messages.at(i)["content"] =
                eagle_read_blocks(common_json(messages.at(i).at("content")), "message " + std::to_string(i + 1), tools);
        }
    }
    tools.write(body);
    body["messages"] = eagle_split_results(body.at("messages"));
    eagle_move_system(body);
    eagle_read_format(body, body, "output_format");
    if (eagle_has(body, "output_config")) {
        eagle_read_format(body, body.at("output_config"), "format");
        eagle_read_effort(body);
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

// Copies the settings of llama.cpp that the converted body does not have yet; every API accepts them. Also restores
// what the conversion has joined.
inline void eagle_keep_settings(const common_json & body, common_json & converted) {
    eagle_restore_results(body, converted);
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
