// Truncated answers of the server's APIs: their finish reason, and calls that a limit or a stop text has cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "chat.h"
#include "eagle_schema.h"
#include "json.h"

constexpr size_t EAGLE_MAX_CUT = 2000;  // maximum number of bytes that may be removed to make a truncated text valid

// Returns the characters that close the lists, objects and string that are open at the end of a JSON text.
inline std::string eagle_closers(const std::string & text) {
    std::string open;
    const bool quoted = eagle_visit_marks(text, [&](char c) {
        if (c == '[' || c == '{') {
            open.insert(0, 1, c == '[' ? ']' : '}');
        } else if (c != ':' && !open.empty()) {
            open.erase(0, 1);
        }
    });
    return (quoted ? "\"" : "") + open;
}

// Returns the arguments of a call, and completes truncated ones.
inline common_json eagle_arguments_of(const std::string & text) {
    for (size_t n_cut = 0; n_cut < std::min(text.size(), EAGLE_MAX_CUT); n_cut++) {
        const std::string kept = text.substr(0, text.size() - n_cut);
        const common_json found = common_json::parse_no_throw(kept + eagle_closers(kept));
        if (!found.is_discarded()) {
            return found.is_object() ? found : common_json::object();
        }
    }
    return common_json::object();
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
