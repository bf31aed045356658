// Replies that a chat parser cannot read, and streams whose later pieces contradict earlier ones.
#pragma once

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>
#include <vector>

#include "chat.h"

inline bool eagle_begins_with(const std::string & text, const std::string & beginning) {
    return text.compare(0, beginning.size(), beginning) == 0;
}

// Returns true if neither text continues the other. A text may become shorter when a partial stop text is completed.
inline bool eagle_contradicts(const std::string & text, const std::string & sent) {
    return !eagle_begins_with(text, sent) && !eagle_begins_with(sent, text);
}

// Returns the text of a reply that the parser refused as its message; while streaming, an empty message.
inline common_chat_msg eagle_unparsed_reply(const std::string & text, bool is_partial) {
    common_chat_msg message;
    message.role = "assistant";
    message.content = is_partial ? "" : text;
    return message;
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

// Returns the length of the closing tag that a text begins with, such as "</think>", "[/THINK]" or "<channel|>"; 0 if
// there is none.
inline size_t eagle_closing_tag(const std::string & text) {
    const bool is_bracket = text.compare(0, 1, "[") == 0;
    const size_t end = text.find(is_bracket ? ']' : '>');
    if (end == std::string::npos || end < 3 || (!is_bracket && text[0] != '<')) {
        return 0;
    }
    const bool has_bar = !is_bracket && text[end - 1] == '|' && text[1] != '|';
    return text[1] == '/' || has_bar ? end + 1 : 0;
}

// Returns the beginning of the closing tag that has the byte at n; npos if there is none.
inline size_t eagle_tag_around(const std::string & text, size_t n) {
    const size_t begin = text.find_last_of("<[", n);
    const bool is_found = begin != std::string::npos && begin + eagle_closing_tag(text.substr(begin)) > n;
    return is_found ? begin : std::string::npos;
}

// Removes the closing tag that follows reasoning.
inline std::string eagle_without_closing_tag(const std::string & text) {
    const size_t begin = text.find_first_not_of(" \n");
    const size_t n = begin == std::string::npos ? 0 : eagle_closing_tag(text.substr(begin));
    return n == 0 ? text : text.substr(std::min(text.find_first_not_of(" \n", begin + n), text.size()));
}

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

// Returns the length of the longest prefix below n_bad that is the beginning of a reply.
inline size_t eagle_n_read(const std::string & text, const common_chat_parser_params & params, size_t n_bad) {
    size_t n_good = 0;
    while (n_bad - n_good > 1) {
        const size_t n = n_good + (n_bad - n_good) / 2;
        (eagle_read_reply(text.substr(0, n), params) != eagle_reading::failed ? n_good : n_bad) = n;
    }
    return n_good;
}

// Returns the message of a reply or of its beginning. Throws if the parser refuses a reply.
inline common_chat_msg eagle_peg_parse(const std::string & text, bool is_partial,
                                       const common_chat_parser_params & params) {
    try {
        return common_chat_peg_parse(params.parser, text, is_partial, params);
    } catch (const std::runtime_error &) {
        if (!is_partial) {
            throw;
        }
        return eagle_unparsed_reply(text, true);
    }
}

// Returns the message of a complete reply that the parser refuses: the calls of its longest valid prefix, which a
// stream has already sent, or all of it as text. begun: the message of that prefix.
inline common_chat_msg eagle_rest_as_text(const std::string & text, const common_chat_msg & begun) {
    if (!begun.tool_calls.empty()) {
        return begun;
    }
    common_chat_msg whole = eagle_unparsed_reply(text, false);
    eagle_keep_sent(begun, whole);
    if (!begun.reasoning_content.empty() && begun.content.empty()) {
        whole.content = eagle_without_closing_tag(whole.content);
    }
    return whole;
}

constexpr const char * EAGLE_HIDDEN = "\uf5e1\uf5e2\uf5e3";  // mark of a private area, which no format contains

inline bool eagle_has_mark(const std::string & text) {
    return text.find(EAGLE_HIDDEN) != std::string::npos;
}

// Returns true if what follows a text is reasoning.
inline bool eagle_opens_reasoning(const std::string & text, const common_chat_parser_params & params) {
    return eagle_has_mark(eagle_peg_parse(text + EAGLE_HIDDEN, true, params).reasoning_content);
}

// Makes the text of a reply its content if its parser has read nothing of it, such as the head of a call that was cut.
// A tag that only opens reasoning remains hidden. sent: the message of the pieces before, which contains what the
// request has begun.
inline void eagle_keep_unread(const std::string & text, const common_chat_msg & sent, common_chat_msg & message,
                              const common_chat_parser_params & params) {
    if (text.empty() || !message.tool_calls.empty()) {
        return;
    }
    const bool is_begun = params.is_continuation && !params.echo;
    const common_chat_msg begun = is_begun ? eagle_peg_parse("", true, params) : common_chat_msg();
    const auto is_begun_alone = [&](const common_chat_msg & found) {
        return found.content == begun.content && found.reasoning_content == begun.reasoning_content;
    };
    if (is_begun_alone(sent) && is_begun_alone(message) && !eagle_opens_reasoning(text, params)) {
        message.role = "assistant";
        message.content += text;
    }
}

// Replaces the mark at the end of a text. Returns false if the text does not end with it.
inline bool eagle_replace_mark(std::string & text, const std::string & rest) {
    const size_t at = text.rfind(EAGLE_HIDDEN);
    if (at == std::string::npos || at + std::string(EAGLE_HIDDEN).size() != text.size()) {
        return false;
    }
    text.replace(at, std::string::npos, rest);
    return true;
}

// Returns true if a tag may begin with this byte.
inline bool eagle_may_begin_tag(unsigned char byte) {
    return !std::isalnum(byte) && (byte & 0xc0) != 0x80;
}

// Returns at most the number of bytes before those that a parser has kept back, because they may begin a call.
inline size_t eagle_n_shown(const std::string & text, const common_chat_msg & message) {
    const std::string & last = message.content.empty() ? message.reasoning_content : message.content;
    const size_t at = text.find(last);  // a lower bound
    return at == std::string::npos ? text.size() : last.empty() ? 0 : at + last.size();
}

// Returns the message of a complete reply that the parser would continue. Without a call, what may have begun one ("<",
// "<tool_call>") is text. It begins at the last place where the parser reads a mark as content.
inline common_chat_msg eagle_ended(const std::string & text, const common_chat_msg & message,
                                   const common_chat_parser_params & params) {
    if (!message.tool_calls.empty() || eagle_has_mark(text)) {
        return message;
    }
    const size_t n_shown = eagle_n_shown(text, message);
    for (size_t n = text.size() + 1; n-- > n_shown;) {
        const bool is_end = n == text.size();
        if (!is_end && !eagle_may_begin_tag(text[n])) {
            continue;
        }
        common_chat_msg whole = eagle_peg_parse(text.substr(0, n) + EAGLE_HIDDEN, true, params);
        const std::string rest = text.substr(n);  // behind reasoning, control tokens begin another part of the reply
        if (!whole.tool_calls.empty()) {
            continue;
        }
        if (eagle_replace_mark(whole.content, rest)) {
            return whole;
        }
        const size_t tag =
            is_end || !eagle_has_mark(whole.reasoning_content) ? std::string::npos : eagle_tag_around(text, n);
        if (tag != std::string::npos) {
            whole = eagle_peg_parse(text.substr(0, tag), true, params);
            const std::string behind = eagle_without_closing_tag(text.substr(tag));
            const bool is_blank = behind.find_first_not_of(" \t\r\n") == std::string::npos;
            whole.content = is_blank ? "" : behind;  // of a form that has not begun, such as JSON
            return whole;
        }
        if (rest.compare(0, 2, "<|") != 0 && eagle_replace_mark(whole.reasoning_content, rest)) {
            return whole;
        }
    }
    return message;
}

constexpr const char * EAGLE_TEXT_MARK = "\uf5e4\uf5e5\uf5e6";  // behind a byte that looks like the beginning of a tag
constexpr int EAGLE_MAX_TEXT_MARKS = 32;

inline std::string eagle_without_text_marks(std::string text) {
    const size_t size = std::string(EAGLE_TEXT_MARK).size();
    for (size_t at; (at = text.find(EAGLE_TEXT_MARK)) != std::string::npos;) {
        text.erase(at, size);
    }
    return text;
}

// Marks the tag at which the parser of a reply fails, if it is then read as text and the parser reads further. Tags
// that have begun a call remain. Returns false if there is no such tag.
inline bool eagle_mark_text(std::string & text, const common_chat_parser_params & params) {
    const size_t n_read = eagle_n_read(text, params, text.size());
    const common_chat_msg begun = eagle_peg_parse(text.substr(0, n_read), true, params);
    if (!begun.tool_calls.empty()) {
        return false;
    }
    for (size_t n = eagle_n_shown(text, begun); n <= n_read && n < text.size(); n++) {
        if (!eagle_may_begin_tag(text[n]) || std::isspace((unsigned char) text[n])) {
            continue;
        }
        std::string marked = text;
        marked.insert(n + 1, EAGLE_TEXT_MARK);
        if (eagle_n_read(marked, params, marked.size() + 1) > n_read + std::string(EAGLE_TEXT_MARK).size()) {
            text = std::move(marked);
            return true;
        }
    }
    return false;
}

// Returns a complete reply in which tags that begin no valid call are marked as text, as far as the parser then reads
// it.
inline std::string eagle_with_text_marks(std::string text, const common_chat_parser_params & params) {
    for (int n = 0; n < EAGLE_MAX_TEXT_MARKS && eagle_read_reply(text, params) == eagle_reading::failed; n++) {
        if (!eagle_mark_text(text, params)) {
            break;
        }
    }
    return text;
}

// Returns the message of a reply that its parser reads, or of as much of it as it reads.
inline common_chat_msg eagle_read_message(const std::string & text, bool is_partial,
                                          const common_chat_parser_params & params) {
    const auto salvaged = [&] {
        const std::string prefix = text.substr(0, eagle_n_read(text, params, text.size()));
        return eagle_rest_as_text(text, eagle_peg_parse(prefix, true, params));
    };
    common_chat_msg message;
    try {
        message = eagle_peg_parse(text, is_partial, params);
    } catch (const std::runtime_error &) {
        return salvaged();
    }
    const eagle_reading reading =
        is_partial || params.parser.empty() ? eagle_reading::all : eagle_read_reply(text, params);
    if (reading == eagle_reading::more) {
        return eagle_ended(text, message, params);
    }
    if (reading != eagle_reading::failed) {
        return message;
    }
    const common_chat_msg longer = salvaged();
    return longer.tool_calls.size() > message.tool_calls.size() ? longer : message;
}

// Returns the message of a reply. What its parser does not read is text: a tag that begins no valid call ("Use
// <tool_call> tags", a tool that was not offered), or the rest of a reply that ends early.
inline common_chat_msg eagle_parsed_reply(const std::string & text, bool is_partial,
                                          const common_chat_parser_params & params) {
    if (is_partial || params.parser.empty()) {
        return eagle_read_message(text, is_partial, params);
    }
    const std::string marked = eagle_with_text_marks(text, params);
    common_chat_msg message = eagle_read_message(marked, false, params);
    message.content = eagle_without_text_marks(message.content);
    message.reasoning_content = eagle_without_text_marks(message.reasoning_content);
    for (auto & call : message.tool_calls) {
        call.arguments = eagle_without_text_marks(call.arguments);
    }
    return message;
}
