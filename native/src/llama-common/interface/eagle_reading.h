// Answers that a model wrote without a grammar: nothing of their text is lost, and values may contain their own ends.
#pragma once

#include <stdexcept>
#include <string>

#include "chat.h"
#include "eagle_answers.h"
#include "eagle_chat_reply.h"
#include "eagle_value_ends.h"

// Returns what eagle_peg_parse does, with arguments that are JSON.
inline common_chat_msg eagle_message_of(const std::string & text, bool is_partial,
                                        const common_chat_parser_params & params) {
    common_chat_msg message = eagle_peg_parse(text, is_partial, params);
    for (auto & call : message.tool_calls) {
        call.arguments = eagle_escaped_lines(call.arguments);
    }
    return message;
}

// Returns the message of a reply that the parser refuses.
inline common_chat_msg eagle_refused_reply(const std::string & text, const common_chat_parser_params & params) {
    const std::string prefix = text.substr(0, eagle_n_read(text, params, text.size() + 1));
    return eagle_rest_as_text(text, eagle_message_of(prefix, true, params));
}

// Returns the message of a reply that its parser does not read to the end, or at all.
inline common_chat_msg eagle_unread_reply(const std::string & text, const common_chat_parser_params & params) {
    common_chat_msg message;
    try {
        message = eagle_message_of(text, false, params);
    } catch (const std::runtime_error &) {
        return eagle_refused_reply(text, params);
    }
    const common_chat_msg longer = eagle_refused_reply(text, params);
    const bool has_lost = message.tool_calls.empty();  // the text of a call that it does not understand
    return has_lost || longer.tool_calls.size() > message.tool_calls.size() ? longer : message;
}

constexpr int EAGLE_MAX_HIDDEN_ENDS = 64;  // in a reply

// Hides those ends of values in a reply that its parser cannot continue behind. Returns how it reads the rest.
inline eagle_reading eagle_hide_ends(std::string & text, const common_chat_parser_params & params) {
    if (eagle_has_mark(text)) {
        return eagle_reading::failed;
    }
    const eagle_value_ends ends(params.parser);
    for (int i = 0; i < EAGLE_MAX_HIDDEN_ENDS && ends.hide_last(text, eagle_n_read(text, params, text.size() + 1));
         i++) {
        const eagle_reading reading = eagle_read_reply(text, params);
        if (reading != eagle_reading::failed) {
            return reading;
        }
    }
    return eagle_reading::failed;
}

// Returns the message of a reply, or of its beginning.
inline common_chat_msg eagle_read_answer(const std::string & text, bool is_partial,
                                         const common_chat_parser_params & params) {
    if (is_partial || params.parser.empty()) {
        return eagle_message_of(text, is_partial, params);
    }
    const eagle_reading first = eagle_read_reply(text, params);
    if (first != eagle_reading::failed) {
        const common_chat_msg message = eagle_message_of(text, false, params);
        return first == eagle_reading::more ? eagle_ended(text, message, params) : message;
    }
    std::string hidden = text;
    const eagle_reading reading = eagle_hide_ends(hidden, params);
    const common_chat_msg message = eagle_unread_reply(text, params);
    if (reading == eagle_reading::failed || (reading == eagle_reading::more && eagle_has_whole_calls(message))) {
        return message;
    }
    common_chat_msg longer = eagle_message_of(hidden, false, params);
    eagle_remove_marks(longer);
    return longer;
}
