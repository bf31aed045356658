// Earlier answers in the form that a template shows: the arguments of calls, the content next to them, and the key of
// reasoning. Forms are found by rendering trials, once for each template, and follow transformers' apply_chat_template.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "eagle_chat.h"
#include "eagle_unenforced.h"

struct eagle_answer_form {
    bool has_text_arguments = false;   // JSON text; objects fail, or are printed in Python's notation
    bool has_null_content = false;     // of an answer without content; otherwise it is ""
    bool has_nine_characters = false;  // ids of calls, which the template refuses otherwise, as Mistral's do
    bool needs_turns = false;          // two messages of one role in a row are refused
    bool ends_with_results = false;    // a question behind a call's result is refused
    bool prints_parts = false;         // the parts of a system message are printed as a list
    bool shows_tools = true;
    bool shows_calls = true;
    std::string reasoning;  // empty: the template shows none
};

static const char * const EAGLE_MARK = "STRING_MARKER";

// Returns the messages of a trial: a question, an answer with a call, the result, another answer and a question.
inline common_json eagle_called(const common_json & arguments, const common_json & answer,
                                const std::string & id = "call00001") {
    common_json function = common_json{{"name", "tool1"}};
    function["arguments"] = arguments;
    common_json call = common_json{{"id", id}, {"type", "function"}};
    call["function"] = function;
    common_json called = answer;
    called["role"] = "assistant";
    called["tool_calls"] = common_json::array();
    called["tool_calls"].push_back(call);
    const common_json question = common_json{{"role", "user"}, {"content", "User message"}};
    common_json messages = common_json::array();
    messages.push_back(question);
    messages.push_back(called);
    messages.push_back(
        common_json{{"role", "tool"}, {"content", "Tool response"}, {"tool_call_id", id}, {"name", "tool1"}});
    messages.push_back(common_json{{"role", "assistant"}, {"content", "The tool response was 'tool response'"}});
    messages.push_back(question);
    return messages;
}

inline common_json eagle_trial_tools() {
    return common_json::parse(R"([{"type": "function", "function": {"name": "tool1", "description": "Tool description",
        "parameters": {"type": "object", "properties": {"arg": {"type": "string"}}, "required": ["arg"]}}}])");
}

// Returns the variables of trials, with which a template shows reasoning. They are the same for all requests, because
// the form that trials find is kept.
inline common_json eagle_trial_switches() {
    return common_json{{"enable_thinking", true}, {"thinking", true}, {"add_generation_prompt", true}};
}

// Returns the prompt of the first n messages; "" if the template refuses them. render(messages, tools).
template <typename Render>
std::string eagle_trial(const Render & render, const common_json & messages, size_t n) {
    common_json first = common_json::array();
    for (size_t i = 0; i < std::min(n, messages.size()); i++) {
        first.push_back(messages.at(i));
    }
    try {
        return render(first, eagle_trial_tools());
    } catch (const std::exception &) {
        return "";
    }
}

// Returns false for an empty prompt, and for one with arguments in Python's notation, arguments that were encoded
// twice, or a word for missing content.
inline bool eagle_is_sound(const std::string & prompt) {
    for (const std::string wrong : {std::string("{'arg': '") + EAGLE_MARK, std::string("\\\"arg\\\""),
                                    std::string("None"), std::string("null")}) {
        if (prompt.find(wrong) != std::string::npos) {
            return false;
        }
    }
    return !prompt.empty();
}

// Returns true if the reasoning of an answer, next to a call or alone, is in the prompt.
template <typename Render>
bool eagle_shows_reasoning(const Render & render, const common_json & answer) {
    common_json called = answer;
    if (called.at("content").is_string()) {
        called["content"] = "";
    }
    common_json plain = common_json::array();
    plain.push_back(common_json{{"role", "user"}, {"content", "User message"}});
    common_json last = answer;
    last["role"] = "assistant";
    plain.push_back(last);
    const std::string prompts =
        eagle_trial(render, eagle_called(common_json{{"arg", "value"}}, called), 3) + eagle_trial(render, plain, 2);
    const bool is_printed_list =
        prompts.find("'thinking'") != std::string::npos || prompts.find("\"thinking\"") != std::string::npos;
    return prompts.find(EAGLE_MARK) != std::string::npos && !(answer.at("content").is_array() && is_printed_list);
}

template <typename Render>
eagle_answer_form eagle_find_form(const Render & render) {
    std::vector<eagle_answer_form> shown, usable;
    for (const bool as_text : {false, true}) {
        const common_json object = common_json{{"arg", EAGLE_MARK}};
        const common_json arguments = as_text ? common_json(object.dump()) : object;
        for (const bool is_null : {true, false}) {
            common_json answer = common_json::object();
            answer["content"] = is_null ? common_json() : common_json("");
            const common_json messages = eagle_called(arguments, answer);
            const std::string first = eagle_trial(render, messages, 3), all = eagle_trial(render, messages, 5);
            if (eagle_is_sound(first) && eagle_is_sound(all)) {
                const bool is_shown =
                    first.find(EAGLE_MARK) != std::string::npos && all.find(EAGLE_MARK) != std::string::npos;
                (is_shown ? shown : usable).push_back({as_text, is_null});
            }
        }
    }
    eagle_answer_form form = !shown.empty() ? shown.front() : !usable.empty() ? usable.front() : eagle_answer_form();
    if (!shown.empty()) {
        const common_json object = common_json{{"arg", EAGLE_MARK}};
        common_json answer = common_json::object();
        answer["content"] = form.has_null_content ? common_json() : common_json("");
        const common_json arguments = form.has_text_arguments ? common_json(object.dump()) : object;
        form.has_nine_characters = eagle_trial(render, eagle_called(arguments, answer, "call_with_more"), 3).empty();
        common_json messages = eagle_called(arguments, answer);
        messages.erase(3);
        form.ends_with_results = eagle_trial(render, messages, 4).empty();
    }
    const common_json question = common_json{{"role", "user"}, {"content", "User message"}};
    const common_json questions = common_json::array({question, question});
    const std::string asked = eagle_trial(render, questions, 1);
    form.needs_turns = eagle_trial(render, questions, 2).empty() && !asked.empty();
    form.shows_tools = asked.empty() || asked.find("tool1") != std::string::npos;
    form.shows_calls = form.shows_tools || !shown.empty();
    common_json system = common_json{{"role", "system"}};
    system["content"] = common_json::array({common_json{{"type", "text"}, {"text", EAGLE_MARK}}});
    const std::string parts = eagle_trial(render, common_json::array({system, question}), 2);
    form.prints_parts = parts.find(std::string("'") + EAGLE_MARK) != std::string::npos;
    for (const char * key : {"reasoning_content", "reasoning", "thinking", "thought"}) {
        common_json answer = common_json{{"content", "Answer"}};
        answer[key] = EAGLE_MARK;
        if (eagle_shows_reasoning(render, answer)) {
            form.reasoning = key;
            return form;
        }
    }
    common_json part = common_json{{"type", "thinking"}};
    part["thinking"] = EAGLE_MARK;
    common_json answer = common_json::object();
    answer["content"] = common_json::array();
    answer["content"].push_back(part);
    form.reasoning = eagle_shows_reasoning(render, answer) ? "reasoning_content" : "";  // llama.cpp makes it a part
    return form;
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

template <typename Render>
eagle_answer_form eagle_form_of(const std::string & chat_template, const Render & render) {
    return eagle_once_for<eagle_answer_form>(chat_template, [&] { return eagle_find_form(render); });
}

// Returns an id of nine letters and digits: a given one of that form, or one that follows from it.
inline std::string eagle_nine_characters(const std::string & id) {
    const std::string characters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    constexpr size_t N = 9;
    if (id.size() == N && id.find_first_not_of(characters) == std::string::npos) {
        return id;
    }
    uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
    for (const unsigned char c : id) {
        hash = (hash ^ c) * 0x100000001B3;
    }
    std::string found;
    for (size_t i = 0; i < N; i++, hash /= characters.size()) {
        found += characters[hash % characters.size()];
    }
    return found;
}

// Gives calls and their results ids of nine characters. A result without an id belongs to the next of the last calls.
inline void eagle_shorten_ids(common_json & messages) {
    std::vector<std::string> calls;
    size_t n_results = 0;
    for (size_t i = 0; i < messages.size(); i++) {
        common_json & message = messages.at(i);
        if (eagle_has(message, "tool_calls") && !message.at("tool_calls").empty()) {
            calls.clear();
            n_results = 0;
            for (auto & call : message["tool_calls"]) {
                const std::string id = eagle_text_at(call, "id");
                const std::string place = std::to_string(i) + " " + std::to_string(calls.size());
                calls.push_back(eagle_nine_characters(id.empty() ? place : id));
                call["id"] = calls.back();
            }
        } else if (eagle_text_at(message, "role") == "tool") {
            const std::string id = eagle_text_at(message, "tool_call_id");
            message["tool_call_id"] =
                id.empty() && n_results < calls.size() ? calls[n_results] : eagle_nine_characters(id);
            n_results++;
        }
    }
}

// Returns the texts of two contents with an empty line between them; a part, if the first content is a list of parts.
inline common_json eagle_joined(const common_json & first, const common_json & second) {
    if (first.is_null() || second.is_null()) {
        return first.is_null() ? second : first;
    }
    const std::string text = eagle_text_of(first) + "\n\n" + eagle_text_of(second);
    return first.is_string() ? common_json(text) : common_json::array({common_json{{"type", "text"}, {"text", text}}});
}

// Returns true if one message may have to join the one before it. Calls are kept apart.
inline bool eagle_follows(const common_json & before, const common_json & message, const eagle_answer_form & form) {
    const std::string role = eagle_text_at(message, "role");
    const std::string last = eagle_text_at(before, "role");
    const bool has_calls = eagle_has(before, "tool_calls") || eagle_has(message, "tool_calls");
    return (form.needs_turns && role == last && !has_calls && (role == "user" || role == "assistant")) ||
           (form.ends_with_results && role == "user" && last == "tool");
}

// Returns true for a question behind a call that has no result, because a limit has cut it.
inline bool eagle_follows_cut_call(const common_json & before, const common_json & message,
                                   const eagle_answer_form & form) {
    return form.ends_with_results && eagle_text_at(message, "role") == "user" && eagle_has(before, "tool_calls") &&
           !before.at("tool_calls").empty();
}

// Joins messages that the template refuses next to each other. Agents send reminders behind questions and results.
template <typename Render>
void eagle_join_turns(common_json & messages, const std::string & chat_template, const Render & render) {
    eagle_answer_form any;
    any.needs_turns = any.ends_with_results = true;
    bool is_uneven = false;
    for (size_t i = 1; i < messages.size(); i++) {
        const common_json & before = messages.at(i - 1);
        is_uneven = is_uneven || eagle_follows(before, messages.at(i), any) ||
                    eagle_follows_cut_call(before, messages.at(i), any);
    }
    if (!is_uneven) {
        return;
    }
    const eagle_answer_form form = eagle_form_of(chat_template, render);
    common_json joined = common_json::array();
    for (auto message : messages) {
        const size_t n = joined.size();
        if (n > 0 && eagle_follows(joined.at(n - 1), message, form)) {
            common_json & last = joined.at(n - 1);
            for (const char * key : {"content", "reasoning_content"}) {
                if (eagle_has(message, key)) {
                    last[key] = eagle_joined(last.value(key, common_json()), message.at(key));
                }
            }
            continue;
        }
        if (n > 0 && eagle_follows_cut_call(joined.at(n - 1), message, form)) {
            message["role"] = "tool";
            message["content"] = eagle_text_of(message.at("content"));
            message["tool_call_id"] = eagle_text_at(joined.at(n - 1).at("tool_calls").back(), "id");
        }
        joined.push_back(message);
    }
    messages = joined;
}

// Makes calls texts of the model and results texts of the user, for a template without calls.
inline void eagle_calls_as_texts(common_json & messages) {
    std::map<std::string, std::string> names;  // of the functions, by the ids of their calls
    for (auto & message : messages) {
        std::string text = eagle_has(message, "content") ? eagle_text_of(message.at("content")) : "";
        if (eagle_text_at(message, "role") == "tool") {
            const std::string name = names[eagle_text_at(message, "tool_call_id")];
            message = common_json{{"role", "user"}};
            message["content"] = "Result of the tool" + (name.empty() ? "" : " " + name) + ":\n" + text;
        }
        if (!eagle_has(message, "tool_calls")) {
            continue;
        }
        for (const auto & call : message.at("tool_calls")) {
            const common_json function = call.at("function");
            const std::string name = eagle_text_at(function, "name");
            const common_json arguments = function.value("arguments", common_json());
            names[eagle_text_at(call, "id")] = name;
            text += (text.empty() ? "" : "\n\n") + ("Call of the tool " + name + ":\n") +
                    (arguments.is_string() ? arguments.get<std::string>() : arguments.dump());
        }
        message["content"] = text;
        message.erase("tool_calls");
    }
}

// Shows the calls of messages as texts, and logs once that tools are not shown, for a template that has no place for
// them. has_tools: the request has tools.
template <typename Render>
void eagle_show_calls(common_json & messages, const std::string & chat_template, bool has_tools,
                      const Render & render) {
    const bool has_calls = std::any_of(messages.begin(), messages.end(), [](const common_json & message) {
        return eagle_has(message, "tool_calls") || eagle_text_at(message, "role") == "tool";
    });
    if (!has_tools && !has_calls) {
        return;
    }
    const eagle_answer_form form = eagle_form_of(chat_template, render);
    if (has_tools && !form.shows_tools) {
        eagle_log_once("no tools",
                       "tools: the model does not see them, because its chat template has no place for them");
    }
    if (has_calls && !form.shows_calls) {
        eagle_calls_as_texts(messages);
    }
}

// Gives answers the form that the template shows. Returns true if the arguments of calls are text. has_tools: the
// request has tools. render(messages, tools): renders a prompt. Throws for arguments that are no JSON.
template <typename Render>
bool eagle_form_answers(common_json & messages, const std::string & chat_template, bool has_tools,
                        const Render & render) {
    eagle_show_calls(messages, chat_template, has_tools, render);
    for (auto & message : messages) {
        const bool has_parts = eagle_has(message, "content") && message.at("content").is_array();
        if (has_parts && eagle_text_at(message, "role") == "system" &&
            eagle_form_of(chat_template, render).prints_parts) {
            message["content"] = eagle_text_of(message.at("content"));
        }
    }
    eagle_join_turns(messages, chat_template, render);
    bool has_text_arguments = false;
    bool has_ids = false;
    for (auto & message : messages) {
        has_ids = has_ids || eagle_has(message, "tool_calls") || eagle_text_at(message, "role") == "tool";
        const bool has_calls = eagle_has(message, "tool_calls") && !message.at("tool_calls").empty();
        const std::string reasoning = eagle_text_at(message, "reasoning_content");
        if (!has_calls && reasoning.empty()) {
            continue;
        }
        const eagle_answer_form form = eagle_form_of(chat_template, render);
        if (!reasoning.empty() && form.reasoning.empty()) {
            message.erase("reasoning_content");  // some parsers of llama.cpp put it in place of the content
        } else if (!reasoning.empty()) {
            message[form.reasoning] = reasoning;
        }
        if (!has_calls) {
            continue;
        }
        has_text_arguments = form.has_text_arguments;
        if (!eagle_has(message, "content") || message.at("content") == "") {  // the parsed message does not tell apart
            message["content"] = form.has_null_content ? common_json() : common_json("");
        }
        for (auto & call : message["tool_calls"]) {
            if (form.has_text_arguments || !eagle_has(call, "function") ||
                !eagle_has(call.at("function"), "arguments") || !call.at("function").at("arguments").is_string()) {
                continue;
            }
            const std::string text = call.at("function").at("arguments").get<std::string>();
            try {
                call["function"]["arguments"] = common_json::parse(text);
            } catch (const std::exception & error) {
                throw std::invalid_argument(std::string("the arguments of a call are no JSON: ") + error.what());
            }
        }
    }
    if (has_ids && eagle_form_of(chat_template, render).has_nine_characters) {
        eagle_shorten_ids(messages);
    }
    return has_text_arguments;
}
