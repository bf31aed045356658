// The beginnings of a long answer, which a parser would otherwise read from its first character after each token.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "chat.h"
#include "json.h"

constexpr const char * EAGLE_MIDDLE_MARK = "\uf5e7";  // of a private area; also ends a mark
constexpr size_t EAGLE_KEPT_BYTES = 512;              // on each side of a middle: more than a tag has
constexpr size_t EAGLE_MIDDLE_BYTES = 1024;           // a middle grows by at least as many
constexpr size_t EAGLE_SHORT_ANSWER = 4096;           // bytes that are read again for each token
constexpr size_t EAGLE_READ_AGAIN = 512;              // bytes that are read again for a new byte of a longer one

// Returns true if a JSON text that begins within a string ends the string.
inline bool eagle_ends_string(const std::string & text) {
    for (size_t i = 0; i < text.size(); i += text[i] == '\\' ? 2 : 1) {
        if (text[i] == '"') {
            return true;
        }
    }
    return false;
}

// An answer that grows. Within a text, the state of its parser does not depend on the characters: the middle of long
// reasoning, content or strings of arguments is replaced by a mark before parsing, and put back into the message. This
// is done where the message is then the same as without it.
class eagle_long_answer {
  public:
    // Returns true if enough of the answer is new to read it again. Numbers and lists of arguments have no middle, and
    // take 20 times as long as text.
    bool is_due(const std::string & answer) const {
        return short_.size() < EAGLE_SHORT_ANSWER || (answer.size() - n_taken_) * EAGLE_READ_AGAIN >= short_.size();
    }

    // Returns the message of the answer so far. is_json: the content is JSON. read(text): returns a message.
    template <typename Read>
    common_chat_msg message(const std::string & answer, bool is_json, const Read & read) {
        short_.append(answer, n_taken_, std::string::npos);
        if (!is_marked_ && answer.find(EAGLE_MIDDLE_MARK, n_taken_) != std::string::npos) {
            is_marked_ = true;
            middles_.clear();
            short_ = answer;
        }
        n_taken_ = answer.size();
        const common_chat_msg found = restored(read(short_), middles_);
        if (!is_marked_ && short_.size() >= next_) {
            shorten(found, is_json, read);
            next_ = std::max(short_.size(), tail_ + 2 * EAGLE_KEPT_BYTES) + EAGLE_MIDDLE_BYTES;
        }
        return found;
    }

  private:
    struct Middle {
        std::string mark, text;
        std::string in_arguments;  // quoted, if the model has not written them as JSON
    };

    static void put_back(std::string & text, const std::string & mark, const std::string & middle) {
        const size_t at = text.find(mark);
        if (at != std::string::npos) {
            text.replace(at, mark.size(), middle);
        }
    }

    static common_chat_msg restored(common_chat_msg message, const std::vector<Middle> & middles) {
        for (const Middle & middle : middles) {
            put_back(message.reasoning_content, middle.mark, middle.text);
            put_back(message.content, middle.mark, middle.text);
            for (auto & call : message.tool_calls) {
                put_back(call.arguments, middle.mark, middle.in_arguments);
            }
        }
        return message;
    }

    // Returns the nearest place before n that separates neither the bytes of a character nor those of an escape.
    size_t boundary(size_t n) const {
        while (n > 0 && ((short_[n] & 0xc0) == 0x80 || short_[n - 1] == '\\')) {
            n--;
        }
        return n;
    }

    // Leaves out what follows the last middle, or another middle.
    template <typename Read>
    void shorten(const common_chat_msg & whole, bool is_json, const Read & read) {
        const size_t end = boundary(short_.size() - EAGLE_KEPT_BYTES);
        const size_t begin = boundary(end - std::min(end, EAGLE_MIDDLE_BYTES));
        if (end <= tail_) {
            return;
        }
        if (middles_.empty() || !leave_out(tail_, end, false, whole, is_json, read)) {
            leave_out(std::max(begin, tail_), end, true, whole, is_json, read);
        }
    }

    // Leaves out a part of the short answer. Returns false if the message would change, now or with what follows.
    template <typename Read>
    bool leave_out(size_t begin, size_t end, bool is_new, const common_chat_msg & whole, bool is_json,
                   const Read & read) {
        std::vector<Middle> middles = middles_;
        if (is_new) {
            middles.push_back({EAGLE_MIDDLE_MARK + std::to_string(middles.size()) + EAGLE_MIDDLE_MARK, "", ""});
        }
        Middle & middle = middles.back();
        const std::string part = short_.substr(begin, end - begin);
        middle.text += part;
        const std::string text = short_.substr(0, begin) + (is_new ? middle.mark : "") + short_.substr(end);
        const common_chat_msg found = read(text);
        const std::string quoted = common_json(middle.text).dump();
        const bool is_in_content = found.content.find(middle.mark) != std::string::npos;
        const bool is_in_thoughts = found.reasoning_content.find(middle.mark) != std::string::npos;
        const bool is_text = is_in_thoughts || (is_in_content && !is_json);
        for (const bool is_quoted : {false, true}) {
            const bool is_json_text = !is_text && (is_in_content || !is_quoted);
            middle.in_arguments = is_quoted ? quoted.substr(1, quoted.size() - 2) : middle.text;
            if (!(is_json_text && eagle_ends_string(part)) && restored(found, middles) == whole) {
                tail_ = is_new ? begin + middle.mark.size() : tail_;
                short_ = text;
                middles_ = middles;
                return true;
            }
        }
        return false;
    }

    std::string short_;                                        // the answer without its middles
    size_t n_taken_ = 0;                                       // bytes of the answer
    size_t tail_ = 0;                                          // of the short answer: what follows the last middle
    size_t next_ = 2 * EAGLE_KEPT_BYTES + EAGLE_MIDDLE_BYTES;  // size at which it is shortened
    bool is_marked_ = false;                                   // the model has written a mark
    std::vector<Middle> middles_;
};
