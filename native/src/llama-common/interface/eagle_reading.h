// Answers that a model wrote without a grammar: nothing of their text is lost, and values may contain their own ends.
#pragma once

#include <stdexcept>
#include <string>

#include "chat.h"
#include "eagle_answers.h"
#include "eagle_chat_reply.h"
#include "eagle_value_ends.h"

enum class eagle_reading { all, more, failed };  // more: the text is the beginning of a reply

inline eagle_reading eagle_read_reply(const std::string & text, const common_chat_parser_params & params) {
    common_peg_parse_context context(params.generation_prompt + text, COMMON_PEG_PARSE_FLAG_LENIENT);
    const auto result = params.parser.parse(context);
    if (result.fail()) {
        return eagle_reading::failed;
    }
    const bool is_read = result.end >= context.input.size();
    return result.need_more_input() ? eagle_reading::more : is_read ? eagle_reading::all : eagle_reading::failed;
}

// Returns the length of the longest prefix that is the beginning of a reply.
inline size_t eagle_n_read(const std::string & text, const common_chat_parser_params & params) {
    size_t n_good = 0;
    for (size_t n_bad = text.size() + 1; n_bad - n_good > 1;) {
        const size_t n = n_good + (n_bad - n_good) / 2;
        (eagle_read_reply(text.substr(0, n), params) != eagle_reading::failed ? n_good : n_bad) = n;
    }
    return n_good;
}

// Returns the message of a reply or of its beginning. Throws if the parser refuses a reply.
inline common_chat_msg eagle_peg_parse(const std::string & text, bool is_partial,
                                       const common_chat_parser_params & params) {
    common_chat_msg message;
    try {
        message = common_chat_peg_parse(params.parser, text, is_partial, params);
    } catch (const std::runtime_error &) {
        if (!is_partial) {
            throw;
        }
        return eagle_unparsed_reply(text, true);
    }
    for (auto & call : message.tool_calls) {
        call.arguments = eagle_escaped_lines(call.arguments);
    }
    return message;
}

// Returns the message of a reply that the parser refuses: the calls of its longest valid prefix, which a stream has
// already sent, or all of it as text.
inline common_chat_msg eagle_rest_as_text(const std::string & text, const common_chat_parser_params & params) {
    common_chat_msg message = eagle_peg_parse(text.substr(0, eagle_n_read(text, params)), true, params);
    if (!message.tool_calls.empty()) {
        return message;
    }
    common_chat_msg whole = eagle_unparsed_reply(text, false);
    eagle_keep_sent(message, whole);
    if (!message.reasoning_content.empty() && message.content.empty()) {
        whole.content = eagle_without_closing_tag(whole.content);
    }
    return whole;
}

// Returns the message of a reply that its parser does not read to the end, or at all.
inline common_chat_msg eagle_unread_reply(const std::string & text, const common_chat_parser_params & params) {
    common_chat_msg message;
    try {
        message = eagle_peg_parse(text, false, params);
    } catch (const std::runtime_error &) {
        return eagle_rest_as_text(text, params);
    }
    const common_chat_msg longer = eagle_rest_as_text(text, params);
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
    for (int i = 0; i < EAGLE_MAX_HIDDEN_ENDS && ends.hide_last(text, eagle_n_read(text, params)); i++) {
        const eagle_reading reading = eagle_read_reply(text, params);
        if (reading != eagle_reading::failed) {
            return reading;
        }
    }
    return eagle_reading::failed;
}

// Returns the message of a reply that a parser would continue. Without a call it keeps back what may begin one, as "<".
inline common_chat_msg eagle_ended_reply(const std::string & text, const common_chat_parser_params & params) {
    common_chat_msg message = eagle_peg_parse(text, false, params);
    if (message.tool_calls.empty() && !eagle_has_mark(text)) {
        common_chat_msg whole = eagle_peg_parse(text + EAGLE_HIDDEN, true, params);
        if (whole.tool_calls.empty() && (eagle_has_mark(whole.content) || eagle_has_mark(whole.reasoning_content))) {
            eagle_remove_marks(whole);
            return whole;
        }
        if (!message.content.empty()) {  // followed by the head of a call
            whole = eagle_unparsed_reply(text, false);
            eagle_keep_sent(message, whole);
            return whole;
        }
    }
    return message;
}

// Returns the message of a reply, or of its beginning.
inline common_chat_msg eagle_read_answer(const std::string & text, bool is_partial,
                                         const common_chat_parser_params & params) {
    if (is_partial || params.parser.empty()) {
        return eagle_peg_parse(text, is_partial, params);
    }
    const eagle_reading first = eagle_read_reply(text, params);
    if (first != eagle_reading::failed) {
        return first == eagle_reading::more ? eagle_ended_reply(text, params) : eagle_peg_parse(text, false, params);
    }
    std::string hidden = text;
    const eagle_reading reading = eagle_hide_ends(hidden, params);
    const common_chat_msg message = eagle_unread_reply(text, params);
    if (reading == eagle_reading::failed || (reading == eagle_reading::more && eagle_has_whole_calls(message))) {
        return message;
    }
    common_chat_msg longer = eagle_peg_parse(hidden, false, params);
    eagle_remove_marks(longer);
    return longer;
}
