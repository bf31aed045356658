// Messages with several texts: each becomes one text, joined as the chat template joins its parts. llama.cpp joins them
// with line breaks if it does not notice that a template reads parts, and many templates drop parts of results.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chat.h"
#include "eagle_answer_form.h"
#include "jinja/runtime.h"
#include "json.h"

// Returns a prompt; "" if the template refuses the messages.
inline std::string eagle_prompt_of(const common_chat_template & chat_template, const common_json & messages,
                                   const common_json & tools) {
    common_json variables = {{"messages", messages}, {"bos_token", ""}, {"eos_token", ""}};
    variables["add_generation_prompt"] = true;
    if (!tools.empty()) {
        variables["tools"] = tools;
    }
    try {
        jinja::context context(chat_template.source());
        jinja::global_from_json(context, variables, false);
        jinja::runtime runtime(context);
        return jinja::runtime::gather_string_parts(runtime.execute(chat_template.prog))->as_string().str();
    } catch (const std::exception &) {
        return "";
    }
}

// Returns a trial with this content in a message of a role. form: of the call before a result.
inline common_json eagle_chat_with(const std::string & role, const common_json & content,
                                   const eagle_answer_form & form) {
    const common_json question = common_json{{"role", "user"}, {"content", "User message"}};
    common_json message = common_json{{"role", role}};
    message["content"] = content;
    if (role == "tool") {
        const common_json object = common_json{{"arg", "value"}};
        common_json answer = common_json::object();
        answer["content"] = form.has_null_content ? common_json() : common_json("");
        const common_json called = eagle_called(form.has_text_arguments ? common_json(object.dump()) : object, answer);
        message = called.at(size_t(2));
        message["content"] = content;
        return common_json::array({called.at(size_t(0)), called.at(size_t(1)), message});
    }
    return role == "user"        ? common_json::array({message})
           : role == "assistant" ? common_json::array({question, message, question})
                                 : common_json::array({message, question});
}

// Forms of several texts in a message.
struct eagle_text_forms {
    // What a template writes between the texts of a message of each role. A role is missing if the prompt is not that
    // of one text, or if the template reads one text alone.
    std::map<std::string, std::string> joints;
    bool has_results_apart = false;  // each text of a result is shown as a result
};

// Returns true if a prompt shows each of the texts once and in their order, and not as data.
inline bool eagle_shows_apart(const std::string & prompt, const std::vector<std::string> & texts) {
    size_t end = 0;
    for (const std::string & text : texts) {
        const size_t at = prompt.find(text);
        if (at == std::string::npos || at < end || prompt.find(text, at + 1) != std::string::npos) {
            return false;
        }
        end = at + text.size();
    }
    return prompt.find("'text'") == std::string::npos && prompt.find("\"text\"") == std::string::npos;
}

inline void eagle_find_joint(const common_chat_template & chat_template, const std::string & role,
                             const eagle_answer_form & form, eagle_text_forms & forms) {
    const std::vector<std::string> texts = {"FIRST_MARKER", "SECOND_MARKER", "THIRD_MARKER"};
    const common_json tools = role == "tool" ? eagle_trial_tools() : common_json::array();
    const auto part_of = [](const std::string & text) { return common_json{{"type", "text"}, {"text", text}}; };
    const auto prompt_of = [&](const common_json & content) {
        return eagle_prompt_of(chat_template, eagle_chat_with(role, content, form), tools);
    };
    common_json parts = common_json::array();
    for (const std::string & text : texts) {
        parts.push_back(part_of(text));
    }
    const std::string prompt = prompt_of(parts);
    const size_t first = prompt.find(texts[0]);
    const size_t second = prompt.find(texts[1]);
    if (first == std::string::npos || second == std::string::npos || second < first + texts[0].size()) {
        return;
    }
    const size_t end = first + texts[0].size();
    const std::string joint = prompt.substr(end, second - end);
    const std::string text = texts[0] + joint + texts[1] + joint + texts[2];
    const bool takes_text = chat_template.original_caps().supports_string_content;
    if (prompt_of(takes_text ? common_json(text) : common_json::array({part_of(text)})) == prompt) {
        forms.joints[role] = joint;
    } else if (role == "tool") {
        forms.has_results_apart = eagle_shows_apart(prompt, texts);
    }
}

inline eagle_text_forms eagle_find_text_forms(const std::string & source) {
    eagle_text_forms forms;
    try {
        const common_chat_template chat_template(source, "", "");
        const eagle_answer_form form = eagle_find_form([&](const common_json & messages, const common_json & tools) {
            return eagle_prompt_of(chat_template, messages, tools);
        });
        for (const char * role : {"system", "user", "assistant", "tool"}) {
            eagle_find_joint(chat_template, role, form, forms);
        }
    } catch (const std::exception &) {  // the name of a format that llama.cpp knows
    }
    return forms;
}

// Returns the parts of a message with one text in place of each run of texts.
inline std::vector<common_chat_msg_content_part> eagle_with_joint(
    const std::vector<common_chat_msg_content_part> & parts, const std::string & joint) {
    std::vector<common_chat_msg_content_part> joined;
    for (const auto & part : parts) {
        if (part.type == "text" && !joined.empty() && joined.back().type == "text") {
            joined.back().text += joint + part.text;
        } else {
            joined.push_back(part);
        }
    }
    return joined;
}

// Sorts the results behind each message with calls by their calls, unless an id is missing or is not that of one call.
inline void eagle_sort_results(std::vector<common_chat_msg> & messages) {
    for (size_t i = 0; i < messages.size(); i++) {
        std::map<std::string, size_t> places;
        for (const auto & call : messages[i].tool_calls) {
            places.emplace(call.id, places.size());
        }
        const auto place = [&](const common_chat_msg & message) { return places.at(message.tool_call_id); };
        size_t end = i + 1;
        std::set<std::string> ids;
        while (end < messages.size() && messages[end].role == "tool" && places.count(messages[end].tool_call_id)) {
            ids.insert(messages[end++].tool_call_id);
        }
        const bool is_whole = end == messages.size() || messages[end].role != "tool";
        if (is_whole && ids.size() == end - i - 1 && places.size() == messages[i].tool_calls.size()) {
            std::stable_sort(messages.begin() + (ptrdiff_t) i + 1, messages.begin() + (ptrdiff_t) end,
                             [&](const auto & a, const auto & b) { return place(a) < place(b); });
        }
    }
}

// Returns messages whose texts are joined. templates: of the model. Results become one text, because many templates
// drop their parts, unless the template shows each of their texts as a result.
inline std::vector<common_chat_msg> eagle_with_joined_texts(const common_chat_templates * templates,
                                                            std::vector<common_chat_msg> messages) {
    const std::string source = common_chat_templates_source(templates, "");
    if (source.find("'<|tool_call>call:'") != std::string::npos &&
        source.find("{#- OpenAI Chat Completions:") == std::string::npos) {
        eagle_sort_results(messages);  // for older templates of Gemma 4, llama.cpp takes names from the calls in order
    }
    for (common_chat_msg & message : messages) {
        const bool is_result = message.role == "tool";
        auto & parts = message.content_parts;
        if (parts.size() > 1 || (is_result && !parts.empty())) {
            const auto forms = eagle_once_for<eagle_text_forms>(source, [&] { return eagle_find_text_forms(source); });
            const auto joint = forms.joints.find(message.role);
            const bool is_known = joint != forms.joints.end();
            if (is_result && !is_known && forms.has_results_apart) {
                continue;
            }
            parts = is_known || is_result ? eagle_with_joint(parts, is_known ? joint->second : "\n") : parts;
        }
        if (is_result && parts.size() == 1 && parts[0].type == "text") {
            message.content = parts[0].text;
            parts.clear();
        }
    }
    return messages;
}
