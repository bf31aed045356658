// Arguments that a model writes as text between tags, and that contain their own end, as </parameter>.
//
// A parser ends such a value at the first end in the text. If it cannot read what follows, the end was a part of the
// value: it is hidden, and the text is parsed again. A value therefore ends at the first end that is followed by
// another argument or the end of the call.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "chat-peg-parser.h"
#include "chat.h"
#include "eagle_chat_reply.h"
#include "json.h"

inline void eagle_remove_marks(std::string & text) {
    const size_t size = std::string(EAGLE_HIDDEN).size();
    for (size_t at = 0; (at = text.find(EAGLE_HIDDEN, at)) != std::string::npos;) {
        text.erase(at, size);
    }
}

inline void eagle_remove_marks(common_chat_msg & message) {
    eagle_remove_marks(message.content);
    eagle_remove_marks(message.reasoning_content);
    for (auto & call : message.tool_calls) {
        eagle_remove_marks(call.arguments);
    }
}

// The texts that end the values of a parser.
class eagle_value_ends {
  public:
    explicit eagle_value_ends(const common_peg_arena & parser) : all_(parser.to_json()) {
        const common_json & parsers = all_.at("parsers");
        for (const auto & each : parsers) {
            if (each.at("type") == "tag" && each.at("tag") == common_chat_peg_builder::TOOL_ARG_STRING_VALUE) {
                add_below(each.at("child").get<size_t>());
            }
        }
    }

    // Hides the last end within the first n bytes. Returns false if there is none.
    bool hide_last(std::string & text, size_t n) const {
        size_t last = std::string::npos;
        for (const std::string & end : ends_) {
            const size_t at = n < end.size() ? std::string::npos : text.rfind(end, n - end.size());
            last = at == std::string::npos || (last != std::string::npos && last > at) ? last : at;
        }
        if (last != std::string::npos) {
            text.insert(last + 1, EAGLE_HIDDEN);
        }
        return last != std::string::npos;
    }

  private:
    void add_below(size_t id) {
        const common_json & parser = all_.at("parsers").at(id);
        const std::string type = parser.at("type").get<std::string>();
        if (type == "until") {
            for (const auto & end : parser.at("delimiters")) {
                ends_.insert(end.get<std::string>());
            }
        } else if (type == "ref") {
            add_below(all_.at("rules").at(parser.at("name").get<std::string>()).get<size_t>());
        } else if (parser.contains("child")) {
            add_below(parser.at("child").get<size_t>());
        }
    }

    common_json all_;
    std::set<std::string> ends_;
};

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
