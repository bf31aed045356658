// Reads answers by llama.cpp's parsers. Nothing that a model wrote is lost: what is no call is text, and a value may
// contain its own end.
#pragma once

#include <algorithm>
#include <cctype>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "chat.h"
#include "json.h"

constexpr const char * EAGLE_MARK = "\uf5e1\uf5e2\uf5e3";  // of a private area, which no format contains
constexpr int EAGLE_MAX_REPAIRS = 64;                      // of an answer
constexpr int EAGLE_MAX_TAGS = 64;                         // that are tried for one of them
constexpr size_t EAGLE_MAX_HEAD = 512;                     // bytes of a call before its arguments

// Returns true for the arguments of a whole call; truncated ones are no JSON.
inline bool eagle_is_json(const std::string & arguments) {
    return !common_json::parse_no_throw(arguments).is_discarded();
}

inline size_t eagle_n_whole_calls(const common_chat_msg & message) {
    return std::count_if(message.tool_calls.begin(), message.tool_calls.end(),
                         [](const common_chat_tool_call & call) { return eagle_is_json(call.arguments); });
}

inline bool eagle_is_blank(const std::string & text) {
    return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

// Returns JSON with control characters inside of its texts escaped: some formats have texts over several lines.
inline std::string eagle_escaped_lines(const std::string & json) {
    std::string found;
    bool is_quoted = false;
    for (size_t i = 0; i < json.size(); i++) {
        const unsigned char c = json[i];
        if (is_quoted && c < 0x20) {
            const char * digits = "0123456789abcdef";
            found += c == '\n' ? "\\n" : std::string("\\u00") + digits[c >> 4] + digits[c & 15];
            continue;
        }
        found += json[i];
        if (c == '\\' && is_quoted && i + 1 < json.size()) {  // before a control character it is a text itself
            found += static_cast<unsigned char>(json[i + 1]) < 0x20 ? '\\' : json[++i];
        } else if (c == '"') {
            is_quoted = !is_quoted;
        }
    }
    return found;
}

// A parser of answers, and the tags that end its thoughts. A mark within a tag makes it text for the parser: it is
// inserted where the parser then reads further, and removed from the message.
class eagle_reader {
  public:
    eagle_reader() = default;

    // is_streamed: what the calls of a beginning contain remains.
    eagle_reader(common_chat_parser_params params, std::vector<std::string> ends_of_thoughts, bool is_streamed)
        : params_(std::move(params)), ends_(std::move(ends_of_thoughts)), is_streamed_(is_streamed) {}

    // Returns the message of the beginning of an answer.
    common_chat_msg read_beginning(const std::string & text) const { return parsed(text); }

    // Returns the message of an answer. begun: its beginning up to its first calls if text follows them; else
    // empty.
    common_chat_msg read(const std::string & text, common_chat_msg & begun) const {
        begun = {};
        if (params_.parser.empty() || text.find(EAGLE_MARK) != std::string::npos) {
            return parsed(text);
        }
        int n_repairs = EAGLE_MAX_REPAIRS;
        common_chat_msg message = repaired(text, n_repairs, begun);
        remove_marks(message);
        remove_marks(begun);
        return message;
    }

    // Returns true if the parser refuses an answer.
    bool refuses(const std::string & text) const { return state(text) == State::failed; }

  private:
    enum class State { all, more, failed };  // more: the text is the beginning of an answer

    State state(const std::string & text) const {
        common_peg_parse_context context(params_.generation_prompt + text, COMMON_PEG_PARSE_FLAG_LENIENT);
        const auto result = params_.parser.parse(context);
        const bool is_read = !result.fail() && result.end >= context.input.size();
        return !result.fail() && result.need_more_input() ? State::more : is_read ? State::all : State::failed;
    }

    // Returns what the parser reads of a text.
    common_chat_msg parsed(const std::string & text) const {
        common_chat_msg message;
        try {
            message = common_chat_peg_parse(params_.parser, text, true, params_);
        } catch (const std::runtime_error &) {  // nothing
            message.role = "assistant";
        }
        for (auto & call : message.tool_calls) {
            call.arguments = eagle_escaped_lines(call.arguments);
        }
        return message;
    }

    // Returns the length of the longest prefix below `size` without what all longer ones have.
    template <typename Has>
    static size_t longest_without(size_t size, const Has & has) {
        size_t n_without = 0, n_with = size;
        while (n_with - n_without > 1) {
            const size_t n = n_without + (n_with - n_without) / 2;
            (has(n) ? n_with : n_without) = n;
        }
        return n_without;
    }

    static void remove_marks(common_chat_msg & message) {
        remove_marks(message.content);
        remove_marks(message.reasoning_content);
        for (auto & call : message.tool_calls) {
            remove_marks(call.arguments);
        }
    }

    static void remove_marks(std::string & text) {
        for (size_t at; (at = text.find(EAGLE_MARK)) != std::string::npos;) {
            text.erase(at, std::string(EAGLE_MARK).size());
        }
    }

    // Returns the length of the tag at n that ends thoughts; 0 if there is none.
    size_t n_end_of_thoughts(const std::string & text, size_t n) const {
        const auto end = std::find_if(ends_.begin(), ends_.end(), [&](const std::string & each) {
            return text.compare(n, each.size(), each) == 0;
        });
        return end == ends_.end() ? 0 : end->size();
    }

    // Returns true if n is within a tag that ends thoughts.
    bool is_within_end(const std::string & text, size_t n) const {
        return n_end_of_thoughts(text, n) == 0 &&
               std::any_of(ends_.begin(), ends_.end(), [&](const std::string & each) {
                   const size_t begin = text.rfind(each, n);
                   return begin != std::string::npos && n < begin + each.size();
               });
    }

    // Returns the places before n where a tag may begin or can be broken, the last one first.
    std::vector<size_t> tags_before(const std::string & text, size_t n) const {
        std::vector<size_t> found;
        for (n = std::min(n, text.size()); n-- > 0 && found.size() < EAGLE_MAX_TAGS;) {
            if (std::ispunct(static_cast<unsigned char>(text[n])) && !is_within_end(text, n)) {
                found.push_back(n);
            }
        }
        return found;
    }

    // Returns where the calls of a message of n bytes end. is_whole: an answer may end there.
    size_t end_of_calls(const std::string & text, size_t n, const common_chat_msg & message, bool & is_whole) const {
        for (size_t end = n; end > 0 && n - end < EAGLE_MAX_HEAD; end--) {
            is_whole = state(text.substr(0, end)) == State::all;
            if (is_whole || parsed(text.substr(0, end - 1)).tool_calls != message.tool_calls) {
                return end;
            }
        }
        return n;
    }

    // Returns true if a message has the calls of another one, perhaps with longer arguments.
    bool has_calls_of(const common_chat_msg & message, const common_chat_msg & other) const {
        const size_t n = other.tool_calls.size();
        return message.tool_calls.size() >= n &&
               (n == 0 || !is_streamed_ ||
                message.tool_calls[n - 1].arguments.rfind(other.tool_calls[n - 1].arguments, 0) == 0);
    }

    // Marks a tag at which the parser fails behind n bytes, if it then reads further. Tags that end thoughts or have
    // begun a call remain, and a value does not continue behind its whole call to the end of the text.
    bool mark_tag(std::string & text, size_t n, const common_chat_msg & found) const {
        for (const size_t at : tags_before(text, n + 1)) {
            if (n_end_of_thoughts(text, at) > 0) {
                continue;
            }
            std::string marked = text;
            marked.insert(at + 1, EAGLE_MARK);
            const std::string longer = marked.substr(0, n + 1 + std::string(EAGLE_MARK).size());
            if (!refuses(longer) && has_calls_of(parsed(longer), found) &&
                (eagle_n_whole_calls(found) == 0 || state(marked) != State::more)) {
                text = std::move(marked);
                return true;
            }
        }
        return false;
    }

    // Returns true if the mark at the end of a text is in its message: the parser holds nothing back.
    static bool is_shown(const common_chat_msg & message) {
        return ends_with_mark(message.content) || ends_with_mark(message.reasoning_content);
    }

    static bool ends_with_mark(const std::string & text) {
        const size_t size = std::string(EAGLE_MARK).size();
        return text.size() >= size && text.compare(text.size() - size, size, EAGLE_MARK) == 0;
    }

    // Compares texts without marks and spaces at their ends: those before a tag are no part of a text.
    static bool is_same_text(std::string text, std::string other) {
        for (std::string * each : {&text, &other}) {
            remove_marks(*each);
            each->resize(each->find_last_not_of(" \t\r\n") + 1);
        }
        return text == other;
    }

    // Returns the last place up to n where the parser reads text, and where is_wanted(message) holds. message: of the
    // text before it, and a mark.
    template <typename Wanted>
    std::optional<size_t> last_text(const std::string & text, size_t n, common_chat_msg & message,
                                    const Wanted & is_wanted) const {
        std::vector<size_t> places = tags_before(text, n);
        places.insert(places.begin(), n);
        for (const size_t at : places) {
            message = parsed(text.substr(0, at) + EAGLE_MARK);
            if (message.tool_calls.empty() && is_shown(message) && is_wanted(message)) {
                return at;
            }
        }
        return std::nullopt;
    }

    // Returns the message of an answer without calls that the parser does not read to its end: the rest is text.
    common_chat_msg ended(const std::string & text, size_t n, bool has_more) const {
        common_chat_msg message;
        const auto at = last_text(text, n, message, [](const common_chat_msg &) { return true; });
        if (!at) {
            message = parsed(text.substr(0, n));
            message.content += has_more ? "" : text.substr(n);
            return message;
        }
        const std::string rest = text.substr(*at);
        const size_t n_end = n_end_of_thoughts(rest, 0);
        if (ends_with_mark(message.content)) {
            message.content += rest;
        } else if (n_end > 0) {  // of a form that has not begun, such as JSON
            message.content =
                eagle_is_blank(rest.substr(n_end)) ? "" : rest.substr(rest.find_first_not_of(" \n", n_end));
        } else if (has_more && rest.compare(0, 2, "<|") == 0) {  // control tokens begin another part of the answer
            return parsed(text);
        } else {
            message.reasoning_content += rest;
        }
        return message;
    }

    // Returns the message of an answer whose text continues behind its calls, as if it had been written before them.
    common_chat_msg continued(const std::string & text, size_t end, common_chat_msg message, int & n_repairs,
                              common_chat_msg & begun) const {
        std::string rest = text.substr(end);
        if (eagle_is_blank(rest)) {
            return message;
        }
        begun = message;
        if (n_repairs-- <= 0) {
            message.content += rest;
            return message;
        }
        const size_t n_before =
            longest_without(end, [&](size_t n) { return !parsed(text.substr(0, n)).tool_calls.empty(); });
        common_chat_msg shown;
        const auto begin = last_text(text, n_before, shown, [&](const common_chat_msg & each) {
            return is_same_text(each.content, message.content) &&
                   is_same_text(each.reasoning_content, message.reasoning_content);
        });
        const std::string before = text.substr(0, begin.value_or(0));
        rest.erase(0, eagle_is_blank(before) ? rest.find_first_not_of(" \t\r\n") : 0);
        common_chat_msg later, whole = repaired(before + rest, n_repairs, later);
        whole.tool_calls.insert(whole.tool_calls.begin(), message.tool_calls.begin(), message.tool_calls.end());
        return whole;
    }

    common_chat_msg repaired(std::string text, int & n_repairs, common_chat_msg & begun) const {
        for (;;) {
            const State reading = state(text);
            if (reading == State::all) {
                return parsed(text);
            }
            const bool has_more = reading == State::more;
            const size_t n = has_more
                                 ? text.size()
                                 : longest_without(text.size(), [&](size_t m) { return refuses(text.substr(0, m)); });
            const common_chat_msg found = parsed(text.substr(0, n));
            const bool has_calls = !found.tool_calls.empty();
            bool is_whole = false;
            const size_t end = has_calls ? end_of_calls(text, n, found, is_whole) : 0;
            if (is_whole) {
                return continued(text, end, found, n_repairs, begun);
            }
            if (has_more || n_repairs-- <= 0 || !mark_tag(text, n, found)) {
                return !has_calls ? ended(text, n, has_more)
                       : has_more ? found
                                  : continued(text, end, found, n_repairs, begun);
            }
        }
    }

    common_chat_parser_params params_;
    std::vector<std::string> ends_;
    bool is_streamed_ = false;
};
