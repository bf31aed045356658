// Requests as JSON, and what the text of an answer may be.
#pragma once

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "json.h"

inline void eagle_require(bool is_met, const std::string & message) {
    if (!is_met) {
        throw std::invalid_argument(message);
    }
}

inline bool eagle_has(const common_json & object, const std::string & key) {
    return object.is_object() && object.contains(key) && !object.at(key).is_null();
}

inline std::string eagle_text_at(const common_json & object, const std::string & key) {
    return eagle_has(object, key) && object.at(key).is_string() ? object.at(key).get<std::string>() : std::string();
}

// Returns an object without its keys with the value null.
inline common_json eagle_without_nulls(const common_json & object) {
    common_json found = common_json::object();
    for (const auto & item : object.items()) {
        if (!item.value().is_null()) {
            found[item.key()] = item.value();
        }
    }
    return found;
}

// Returns what make() finds out about a template, once for each of the last templates. It may be called twice if two
// threads begin with a template at once: rendering takes time, so no lock is held.
template <typename Value, typename Make>
Value eagle_once_for(const std::string & chat_template, const Make & make) {
    constexpr size_t MAX_TEMPLATES = 64;
    static std::mutex mutex;
    static std::map<std::string, Value> known;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = known.find(chat_template);
        if (found != known.end()) {
            return found->second;
        }
    }
    const Value value = make();
    const std::lock_guard<std::mutex> lock(mutex);
    if (known.size() >= MAX_TEMPLATES) {
        known.clear();
    }
    return known.emplace(chat_template, value).first->second;
}

// What the text of an answer may be: anything; nothing, because a call is required; a response format.
enum class eagle_content { any, none, format };

constexpr const char * EAGLE_FORMAT_RULE = "answer-in-format";  // grammar rule of a response format

// While the object exists, parsers built on this thread restrict the text of an answer.
class eagle_content_rule {
  public:
    explicit eagle_content_rule(eagle_content content, bool has_thoughts = true) : before_(current()) {
        current() = {content, has_thoughts};
    }
    ~eagle_content_rule() { current() = before_; }
    eagle_content_rule(const eagle_content_rule &) = delete;
    eagle_content_rule & operator=(const eagle_content_rule &) = delete;

    // Returns the parser of the text that `parser` reads. Spaces before a required call are no content: a stream would
    // send them before an answer in a format.
    template <typename Builder, typename Parser>
    static Parser content(Builder & builder, const Parser & parser) {
        const eagle_content allowed = current().content;
        return allowed == eagle_content::any ? builder.tag(Builder::CONTENT, parser)
               : allowed == eagle_content::none
                   ? builder.space()
                   : builder.tag(Builder::CONTENT, builder.gbnf(parser, EAGLE_FORMAT_RULE));
    }

    // Returns the parser of the thoughts that `parser` reads: without thoughts they would be a way around a format.
    template <typename Builder, typename Parser>
    static Parser thoughts(Builder & builder, const Parser & parser) {
        return current().has_thoughts ? parser : builder.eps();
    }

  private:
    struct State {
        eagle_content content = eagle_content::any;
        bool has_thoughts = true;
    };

    static State & current() {
        static thread_local State value;
        return value;
    }

    State before_;
};
