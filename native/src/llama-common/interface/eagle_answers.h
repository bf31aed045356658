// Calls that a limit or a stop text has cut.
#pragma once

#include <algorithm>
#include <string>

#include "chat.h"
#include "json.h"

// Returns true for the arguments of a whole call; truncated ones are no JSON.
inline bool eagle_is_json(const std::string & arguments) {
    return !common_json::parse_no_throw(arguments).is_discarded();
}

inline bool eagle_has_whole_calls(const common_chat_msg & message) {
    return !message.tool_calls.empty() &&
           std::all_of(message.tool_calls.begin(), message.tool_calls.end(),
                       [](const common_chat_tool_call & call) { return eagle_is_json(call.arguments); });
}
