// The C interface of answers: parses them by the parsers of llama-server (eagle_chats.h).
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <vector>

#include "chat.h"
#include "eagle_chat.h"
#include "eagle_chats.h"
#include "eagle_formats.h"
#include "eagle_long_answer.h"
#include "eagle_reading.h"
#include "eagle_result.h"
#include "eagle_sent.h"
#include "eagle_template.h"

struct eagle_reply {
    common_json request;
    std::shared_ptr<const common_chat_templates> templates;
    bool thinks = true;
    bool streams_calls = false;
    bool is_continued = false;  // the answer continues the last message
    common_chat_params params;
    eagle_reader reader;
    std::string text;
    eagle_long_answer beginning;
    common_chat_msg message;
    bool has_calls = false;  // of the answer, not only of what it continues
};

namespace {

using Templates = std::shared_ptr<const common_chat_templates>;

// Returns a template, which is read and tried once.
Templates templates_of(const common_json & request) {
    const std::string text = eagle_text_at(request, "template");
    const std::string bos = eagle_text_at(request, "bos"), eos = eagle_text_at(request, "eos");
    eagle_require(!text.empty(), "there is no chat template");
    return eagle_once_for<Templates>(text + bos + eos, [&] {
        const eagle_template_rendering limits;
        return Templates(common_chat_templates_init(nullptr, text, bos, eos));
    });
}

bool is_true(const common_json & request, const char * key, bool usual = false) {
    return eagle_has(request, key) ? request.at(key).get<bool>() : usual;
}

common_chat_templates_inputs inputs_of(const eagle_reply & reply, const char * tools) {
    const common_json & request = reply.request;
    common_chat_templates_inputs inputs;
    inputs.tools =
        common_chat_tools_parse_oaicompat(eagle_has(request, tools) ? request.at(tools) : common_json::array());
    const std::string choice = eagle_text_at(request, "tool_choice");
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(choice.empty() ? "auto" : choice);
    auto abilities = common_chat_templates_get_caps(reply.templates.get());
    inputs.parallel_tool_calls = is_true(request, "parallel_tool_calls", abilities["supports_parallel_tool_calls"]);
    inputs.json_schema = eagle_has(request, "json_schema") ? request.at("json_schema").dump() : "";
    const std::string format = eagle_text_at(request, "reasoning_format");
    inputs.reasoning_format = common_reasoning_format_from_name(format.empty() ? "deepseek" : format);
    inputs.enable_thinking = reply.thinks;
    inputs.force_pure_content = is_true(request, "force_pure_content");
    if (eagle_has(request, "chat_template_kwargs")) {
        for (const auto & item : request.at("chat_template_kwargs").items()) {
            if (item.key() != "enable_thinking") {
                inputs.chat_template_kwargs[item.key()] = item.value().dump();
            }
        }
    }
    return inputs;
}

// Makes the parts of a message texts: at media, the beginning of an answer does not look. Cut arguments of calls
// become none.
void simplify(common_json & message) {
    const bool has_parts = eagle_has(message, "content") && message.at("content").is_array();
    for (size_t i = 0; has_parts && i < message.at("content").size(); i++) {
        common_json & part = message["content"].at(i);
        part = common_json{{"type", "text"}, {"text", eagle_text_at(part, "text")}};
    }
    for (size_t i = 0; eagle_has(message, "tool_calls") && i < message.at("tool_calls").size(); i++) {
        common_json & function = message["tool_calls"].at(i)["function"];
        if (!eagle_is_json(eagle_text_at(function, "arguments"))) {
            function["arguments"] = eagle_has(function, "arguments") && function.at("arguments").is_object()
                                        ? function.at("arguments").dump()
                                        : "{}";
        }
    }
}

// Reads the last turn, and whether the answer continues its last message.
void read_messages(const eagle_reply & reply, common_chat_templates_inputs & inputs) {
    common_json messages = eagle_last_turn(reply.request.at("messages"));
    for (auto & message : messages) {
        simplify(message);
    }
    inputs.messages = common_chat_msgs_parse_oaicompat(messages);
    inputs.continue_final_message =
        common_chat_continuation_parse(reply.request.value("continue_final_message", common_json()));
    inputs.add_generation_prompt = inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE;
}

// Applies a template to the last turn, on which the beginning of the answer may depend. tools: a key of the request.
common_chat_params applied(eagle_reply & reply, const char * tools = "tools") {
    const common_chat_templates * templates = reply.templates.get();
    common_chat_templates_inputs inputs = inputs_of(reply, tools);
    try {
        read_messages(reply, inputs);
        reply.is_continued = !inputs.add_generation_prompt && !inputs.messages.empty();
        return common_chat_templates_apply(templates, inputs);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {  // messages that the caller's own code reads, or changes for the template
        common_chat_msg question;
        question.role = "user";
        question.content = "Question";
        inputs.messages.erase(inputs.messages.begin(), inputs.messages.end() - (reply.is_continued ? 1 : 0));
        inputs.messages.insert(inputs.messages.begin(), question);
        return common_chat_templates_apply(templates, inputs);
    }
}

eagle_reader reader_of(const common_chat_params & params, bool is_streamed) {
    common_chat_parser_params parser(params);
    if (!params.parser.empty()) {
        parser.parser.load(params.parser);
    }
    std::vector<std::string> ends = params.thinking_end_tags;
    ends.erase(std::remove_if(ends.begin(), ends.end(), eagle_begins_call), ends.end());
    return eagle_reader(std::move(parser), std::move(ends), is_streamed);
}

// Returns true if a prompt ends with the beginning of an answer. The spaces of tokens depend on the tokenizer.
bool follows(const std::string & beginning, const std::string & prompt_end) {
    const auto without_spaces = [](std::string text) {
        text.erase(std::remove_if(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c); }),
                   text.end());
        return text;
    };
    const std::string first = without_spaces(beginning), second = without_spaces(prompt_end);
    const size_t n = std::min(first.size(), second.size());
    return first.compare(first.size() - n, n, second, second.size() - n, n) == 0;
}

// Chooses the form of the answer, with or without thoughts, by the last characters of the prompt.
void follow(eagle_reply & reply, const std::string & prompt_end) {
    if (follows(reply.params.generation_prompt, prompt_end)) {
        return;
    }
    reply.thinks = !reply.thinks;
    const common_chat_params other = applied(reply);
    if (follows(other.generation_prompt, prompt_end)) {
        reply.params = other;
    } else {
        reply.thinks = !reply.thinks;
    }
}

void set_reader(eagle_reply & reply) {
    reply.reader = reader_of(reply.params, reply.streams_calls);
    if (reply.is_continued && !is_true(reply.request, "echo")) {
        reply.message = reply.reader.read_beginning("");
    }
}

// Sets the rules and the parser of the answer.
void prepare(eagle_reply & reply) {
    const common_json & request = reply.request;
    reply.streams_calls = is_true(request, "streams_calls");
    reply.thinks = is_true(request, "enable_thinking", true);
    reply.params = applied(reply);
    if (eagle_has(request, "prompt_end") && !reply.is_continued) {
        follow(reply, eagle_text_at(request, "prompt_end"));
    }
    const bool is_forced = !reply.params.grammar.empty() && !reply.params.grammar_lazy &&
                           common_chat_templates_get_caps(reply.templates.get()).at("supports_tool_calls");
    eagle_require(is_forced || eagle_text_at(request, "tool_choice") != "required",
                  "tool_choice requires a call, but this chat template has none");
    set_reader(reply);
}

// Returns the rules of the answer as keys of llama-server's /completion.
common_json settings_of(const common_chat_params & params) {
    common_json settings = common_json::object();
    settings["preserved_tokens"] = params.preserved_tokens;
    settings["generation_prompt"] = params.generation_prompt;
    settings["message_delimiters"] = params.message_delimiters.to_json();
    if (!params.grammar.empty()) {
        settings["grammar"] = params.grammar;
        settings["grammar_type"] = "tool_calls";
        settings["grammar_lazy"] = params.grammar_lazy;
        settings["grammar_triggers"] = common_json::array();
        for (const auto & trigger : params.grammar_triggers) {
            common_json given = common_json{{"type", int(trigger.type)}, {"value", trigger.value}};
            if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN) {
                given["token"] = trigger.token;
            }
            settings["grammar_triggers"].push_back(given);
        }
    }
    if (!params.thinking_end_tags.empty()) {
        settings["reasoning_budget_start_tag"] = params.thinking_start_tag;
        settings["reasoning_budget_end_tags"] = params.thinking_end_tags;
    }
    return settings;
}

void add_text(common_json & delta, const char * key, const std::string & before, const std::string & now) {
    if (now.size() > before.size()) {
        delta[key] = now.substr(before.size());
    }
}

// Returns what is new in a message. Its texts begin with those before, because eagle_keep_sent has been called.
common_json delta_of(const common_chat_msg & before, const common_chat_msg & now) {
    common_json delta = common_json::object();
    add_text(delta, "reasoning_content", before.reasoning_content, now.reasoning_content);
    add_text(delta, "content", before.content, now.content);
    delta["tool_calls"] = common_json::array();
    for (size_t i = before.tool_calls.size(); i < now.tool_calls.size(); i++) {
        common_json function = common_json{{"name", now.tool_calls[i].name}};
        function["arguments"] = now.tool_calls[i].arguments;
        delta["tool_calls"].push_back(function);
    }
    return delta;
}

// White space before a tag is no part of a text.
void trim_end(std::string & text) {
    text.resize(text.find_last_not_of(" \t\r\n") + 1);
}

// Reads a reply without types if its calls do not have those of their schemas. Returns true if it replaced the message.
bool read_loosely(eagle_reply & reply, common_chat_msg & message) {
    const bool has_cut = eagle_n_whole_calls(message) < message.tool_calls.size();
    if (!has_cut && (!message.tool_calls.empty() || !reply.reader.refuses(reply.text))) {
        return false;
    }
    common_chat_msg loose;
    try {
        common_chat_msg begun;
        loose = reader_of(applied(reply, "loose_tools"), false).read(reply.text, begun);
    } catch (const std::runtime_error &) {  // some templates need the types
        return false;
    } catch (const std::invalid_argument &) {
        return false;
    }
    const bool is_better = eagle_n_whole_calls(loose) > eagle_n_whole_calls(message);
    message = is_better ? loose : message;
    return is_better;
}

// Returns the message of the beginning of an answer.
common_chat_msg message_of(eagle_reply & reply) {
    const bool is_json = eagle_has(reply.request, "json_schema");
    return reply.beginning.message(reply.text, is_json,
                                   [&](const std::string & text) { return reply.reader.read_beginning(text); });
}

// Parses the text so far. A call that may still grow is left out.
common_json added(eagle_reply & reply, bool is_last) {
    common_chat_msg begun;
    common_chat_msg message = is_last ? reply.reader.read(reply.text, begun) : message_of(reply);
    const bool is_loose = is_last && read_loosely(reply, message);
    if (!is_last && !message.tool_calls.empty()) {
        message.tool_calls.pop_back();
    }
    trim_end(message.reasoning_content);
    if (!is_last || !message.tool_calls.empty()) {
        trim_end(message.content);
    }
    const common_chat_msg before = reply.message;
    if (!message.empty()) {
        eagle_keep_sent(before, message);
        reply.message = message;
    }
    common_json delta = delta_of(before, reply.message);
    delta["is_loose"] = is_loose;
    return delta;
}

// Returns what is new in a message, as task_result_state::update_chat_msg of the server does.
common_json sent(eagle_reply & reply, common_chat_msg message) {
    common_chat_msg before = reply.message;
    common_json delta = common_json{{"is_loose", false}, {"tool_calls", common_json::array()}};
    if (message.empty()) {
        return delta;
    }
    eagle_keep_sent(eagle_sent(before, reply.has_calls), message);
    reply.message = message;
    reply.has_calls = reply.has_calls || !message.tool_calls.empty();
    for (const auto & difference : common_chat_msg_diff::compute_diffs(before, message)) {
        const common_chat_tool_call & call = difference.tool_call_delta;
        if (!difference.reasoning_content_delta.empty()) {
            delta["reasoning_content"] = difference.reasoning_content_delta;
        }
        if (!difference.content_delta.empty()) {
            delta["content"] = difference.content_delta;
        }
        if (difference.tool_call_index == std::string::npos) {
            continue;
        }
        common_json piece = common_json{{"index", difference.tool_call_index}, {"arguments", call.arguments}};
        for (const auto & [key, text] : {std::pair("name", call.name), std::pair("id", call.id)}) {
            if (!text.empty()) {
                piece[key] = text;
            }
        }
        delta["tool_calls"].push_back(piece);
    }
    return delta;
}

// Parses the text so far. Text behind calls is in `rest`, because a stream has already sent the calls.
common_json streamed(eagle_reply & reply, bool is_last) {
    if (!is_last) {
        return sent(reply, message_of(reply));
    }
    common_chat_msg begun;
    const common_chat_msg message = reply.reader.read(reply.text, begun);
    if (begun.empty()) {
        return sent(reply, message);
    }
    common_json delta = sent(reply, begun);
    delta["rest"] = sent(reply, message);
    return delta;
}

}  // namespace

int32_t eagle_reply_new(const char * request, eagle_reply ** reply, const char ** result) {
    return eagle_answered(result, [&] {
        auto made = std::make_unique<eagle_reply>();
        made->request = eagle_without_nulls(common_json::parse(request));
        made->templates = templates_of(made->request);
        prepare(*made);
        common_json found = common_json::object();
        found["stops"] = made->params.additional_stops;
        found["settings"] = settings_of(made->params);
        *reply = made.release();
        return found.dump();
    });
}

int32_t eagle_reply_follow(eagle_reply * reply, const char * prompt_end, const char ** result) {
    return eagle_answered(result, [&] {
        follow(*reply, prompt_end);
        set_reader(*reply);
        return std::string();
    });
}

int32_t eagle_reply_add(eagle_reply * reply, const char * text, size_t size, bool is_last, const char ** result) {
    return eagle_answered(result, [&] {
        reply->text.append(text, size);
        if (!is_last && !reply->beginning.is_due(reply->text)) {
            return common_json{{"is_loose", false}, {"tool_calls", common_json::array()}}.dump();
        }
        return (reply->streams_calls ? streamed(*reply, is_last) : added(*reply, is_last)).dump();
    });
}

void eagle_reply_free(eagle_reply * reply) {
    delete reply;
}
