// Truncated answers of the server's APIs: their finish reason, and calls that a limit or a stop text has cut.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>

#include "chat.h"
#include "eagle_schema.h"
#include "json.h"

constexpr size_t EAGLE_MAX_ESCAPE = 12;  // bytes of a JSON escape: "\\ud83d\\ude00"

// Returns the characters that close the lists, objects and string that are open at the end of a JSON text.
inline std::string eagle_closers(const std::string & text) {
    std::string open;
    const bool quoted = eagle_visit_marks(text, [&](char c) {
        if (c == '[' || c == '{') {
            open += c == '[' ? ']' : '}';
        } else if (c != ':' && !open.empty()) {
            open.pop_back();
        }
    });
    return (quoted ? "\"" : "") + std::string(open.rbegin(), open.rend());
}

// Returns the size of the longest beginning of a JSON text that ends behind a value or an opening bracket.
inline size_t eagle_last_value_end(const std::string & text) {
    std::string open;
    bool is_key = false;
    size_t end = 0;
    for (size_t i = 0; i < text.size();) {
        const char c = text[i++];
        if (c == '"') {
            while (i < text.size() && text[i] != '"') {
                i += text[i] == '\\' ? 2 : 1;
            }
            i++;
            end = is_key || i > text.size() ? end : i;
        } else if (c == '{' || c == '[') {
            open += c;
            end = i;
        } else if (c == '}' || c == ']') {
            open.resize(open.size() - !open.empty());
            end = i;
        } else if (c != ',' && c != ':' && !std::isspace((unsigned char) c)) {
            i = std::min(text.find_first_of(",]} \t\r\n", i), text.size());
            end = i == text.size() ? end : i;
        }
        is_key = c == '{' || (c == ',' && !open.empty() && open.back() == '{') ||
                 (is_key && std::isspace((unsigned char) c));
    }
    return end;
}

// Returns the arguments of a call, and completes truncated ones: from the whole text, without an escape or a character
// that is cut, or with the values before the last one alone.
inline common_json eagle_arguments_of(const std::string & text) {
    common_json found;
    for (size_t n_cut = 0; n_cut <= std::min(text.size(), EAGLE_MAX_ESCAPE); n_cut++) {
        const size_t n_kept = n_cut < EAGLE_MAX_ESCAPE ? text.size() - n_cut : eagle_last_value_end(text);
        const std::string kept = text.substr(0, n_kept);
        found = common_json::parse_no_throw(kept + eagle_closers(kept));
        if (!found.is_discarded()) {
            break;
        }
    }
    return found.is_object() ? found : common_json::object();
}

// Returns true for the arguments of a whole call; truncated ones are no JSON.
inline bool eagle_is_json(const std::string & arguments) {
    return !common_json::parse_no_throw(arguments).is_discarded();
}

inline bool eagle_has_whole_calls(const common_chat_msg & message) {
    for (const auto & call : message.tool_calls) {
        if (!eagle_is_json(call.arguments)) {
            return false;
        }
    }
    return !message.tool_calls.empty();
}

// Returns Anthropic's stop_reason of an answer that did not reach a limit. `word`: the stop text that ended it, or
// empty.
inline std::string eagle_stop_reason(const common_chat_msg & message, const std::string & word) {
    if (eagle_has_whole_calls(message)) {
        return "tool_use";
    }
    return word.empty() ? "end_turn" : "stop_sequence";
}

// Adds the token counts of another answer; those of its prompt if no answer to the same prompt was added before.
inline void eagle_add_usage(common_json & answer, const common_json & other, bool is_new_prompt) {
    if (!answer.contains("usage") || !other.contains("usage")) {
        return;
    }
    common_json & usage = answer.at("usage");
    const auto add = [&](const char * to, const char * from) {
        usage[to] = usage.at(to).get<int64_t>() + other.at("usage").at(from).get<int64_t>();
    };
    add("completion_tokens", "completion_tokens");
    add("total_tokens", "completion_tokens");
    common_json & details = usage["completion_tokens_details"];
    details["reasoning_tokens"] =
        details.value("reasoning_tokens", int64_t(0)) +
        other.at("usage").at("completion_tokens_details").at("reasoning_tokens").get<int64_t>();
    if (is_new_prompt) {
        add("prompt_tokens", "prompt_tokens");
        add("total_tokens", "prompt_tokens");
    }
}
