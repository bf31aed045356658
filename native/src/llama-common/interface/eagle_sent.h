// Streams whose later pieces contradict earlier ones.
#pragma once

#include <string>

#include "chat.h"

inline bool eagle_begins_with(const std::string & text, const std::string & beginning) {
    return text.compare(0, beginning.size(), beginning) == 0;
}

// Returns true if neither text continues the other. A text may become shorter when a partial stop text is completed.
inline bool eagle_contradicts(const std::string & text, const std::string & sent) {
    return !eagle_begins_with(text, sent) && !eagle_begins_with(sent, text);
}

// Returns the message of the pieces before without the calls that a request has begun: an answer has them whole.
inline common_chat_msg & eagle_sent(common_chat_msg & message, bool has_calls) {
    if (!has_calls) {
        message.tool_calls.clear();
    }
    return message;
}

// Keeps the content that was already sent, because a streamed part cannot be changed.
inline void eagle_keep_sent(const common_chat_msg & sent, common_chat_msg & message) {
    const bool lost_reasoning = message.reasoning_content.empty() && !sent.reasoning_content.empty();
    if (lost_reasoning || eagle_contradicts(message.reasoning_content, sent.reasoning_content)) {
        const size_t at = message.content.find(sent.reasoning_content);
        message.content =
            at == std::string::npos ? message.content : message.content.substr(at + sent.reasoning_content.size());
        message.reasoning_content = sent.reasoning_content;
    }
    if (eagle_contradicts(message.content, sent.content)) {
        const size_t at = message.content.find(sent.content);
        message.content = at == std::string::npos ? sent.content : message.content.substr(at);
    }
    if (message.tool_calls.size() < sent.tool_calls.size()) {
        message.tool_calls = sent.tool_calls;
    }
}
