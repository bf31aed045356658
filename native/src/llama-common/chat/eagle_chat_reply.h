// Replies that a chat parser cannot read, and streams whose later pieces contradict earlier ones.
#pragma once

#include <algorithm>
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

// Removes what a request has begun, so that a message is the continuation alone.
inline void eagle_keep_continuation(common_chat_msg & message, const std::vector<common_chat_msg_diff> & differences) {
    message.reasoning_content.clear();
    message.content.clear();
    for (const auto & difference : differences) {
        message.reasoning_content += difference.reasoning_content_delta;
        message.content += difference.content_delta;
    }
}

// Removes the closing tag that follows reasoning.
inline std::string eagle_without_closing_tag(const std::string & text) {
    const size_t begin = text.find_first_not_of(" \n");
    if (begin == std::string::npos || text.compare(begin, 2, "</") != 0) {
        return text;
    }
    const size_t end = text.find('>', begin);
    return end == std::string::npos ? text : text.substr(std::min(text.find_first_not_of(" \n", end + 1), text.size()));
}

// Returns true if a parser has read all of the text.
template <typename Result>
bool eagle_reads_all(const Result & result, size_t size) {
    return !result.fail() && (result.need_more_input() || result.end >= size);
}

// Returns the message of a complete reply that the parser refuses: the calls of its longest valid prefix, which a
// stream has already sent, or all of it as text. is_prefix(text): true if the text can be continued to a valid reply.
template <typename IsPrefix, typename Parse>
common_chat_msg eagle_salvaged_reply(const std::string & text, const IsPrefix & is_prefix, const Parse & parse) {
    size_t n_good = 0;
    for (size_t n_bad = text.size(); n_bad - n_good > 1;) {
        const size_t n = n_good + (n_bad - n_good) / 2;
        (is_prefix(text.substr(0, n)) ? n_good : n_bad) = n;
    }
    common_chat_msg message = parse(text.substr(0, n_good));
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

// Returns the message of a reply. A complete one that its parser does not read to the end, or at all, is salvaged.
inline common_chat_msg eagle_parsed_reply(const std::string & text, bool is_partial,
                                          const common_chat_parser_params & params) {
    const auto parse = [&](const std::string & part, bool is_part) {
        try {
            return common_chat_peg_parse(params.parser, part, is_part, params);
        } catch (const std::runtime_error &) {
            if (!is_part) {
                throw;
            }
            return eagle_unparsed_reply(part, true);
        }
    };
    const auto is_read = [&](const std::string & part) {
        common_peg_parse_context context(params.generation_prompt + part, COMMON_PEG_PARSE_FLAG_LENIENT);
        return eagle_reads_all(params.parser.parse(context), context.input.size());
    };
    const auto salvaged = [&] {
        return eagle_salvaged_reply(text, is_read, [&](const std::string & part) { return parse(part, true); });
    };
    common_chat_msg message;
    try {
        message = parse(text, is_partial);
    } catch (const std::runtime_error &) {
        return salvaged();
    }
    if (is_partial || params.parser.empty() || is_read(text)) {
        return message;
    }
    const common_chat_msg longer = salvaged();
    return longer.tool_calls.size() > message.tool_calls.size() ? longer : message;
}
