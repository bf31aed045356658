// The C interface of answers: parses them by the parsers of llama-server (eagle_chats.h).
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <vector>

#include "chat.h"
#include "eagle_answer_form.h"
#include "eagle_bodies.h"
#include "eagle_chat.h"
#include "eagle_chats.h"
#include "eagle_formats.h"
#include "eagle_parts.h"
#include "eagle_reading.h"
#include "eagle_result.h"
#include "eagle_template.h"

struct eagle_reply {
    common_json request;
    std::shared_ptr<const common_chat_templates> templates;
    bool thinks = true;
    common_chat_parser_params parser;
    std::string text;
    common_chat_msg message;
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

common_chat_templates_inputs inputs_of(const eagle_reply & reply) {
    const common_json & request = reply.request;
    common_chat_templates_inputs inputs;
    common_json tools = eagle_has(request, "tools") ? request.at("tools") : common_json();
    eagle_read_tools(tools);
    inputs.tools = common_chat_tools_parse_oaicompat(tools);
    const std::string choice = eagle_text_at(request, "tool_choice");
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(choice.empty() ? "auto" : choice);
    auto abilities = common_chat_templates_get_caps(reply.templates.get());
    inputs.parallel_tool_calls = abilities["supports_parallel_tool_calls"];
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    inputs.enable_thinking = reply.thinks;
    if (eagle_has(request, "chat_template_kwargs")) {
        for (const auto & item : request.at("chat_template_kwargs").items()) {
            if (item.key() != "enable_thinking") {
                inputs.chat_template_kwargs[item.key()] = item.value().dump();
            }
        }
    }
    return inputs;
}

// Applies a template to the last turn, on which the beginning of the answer may depend. is_loose: the parameters of
// tools have their names and no schemas.
common_chat_params applied(const eagle_reply & reply, bool is_loose = false) {
    const eagle_open_schemas open(is_loose ? eagle_opening::values : eagle_opening::faults);
    const common_chat_templates * templates = reply.templates.get();
    common_chat_templates_inputs inputs = inputs_of(reply);
    try {
        common_json last = common_json::object();
        last["messages"] = eagle_last_turn(reply.request.at("messages"));
        eagle_repair_calls(last.at("messages"));
        eagle_read_messages(last);
        inputs.messages = eagle_with_joined_texts(templates, common_chat_msgs_parse_oaicompat(last.at("messages")));
        return common_chat_templates_apply(templates, inputs);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {  // messages that the caller's own code reads
        inputs.messages.resize(1);
        inputs.messages[0] = common_chat_msg();
        inputs.messages[0].role = "user";
        inputs.messages[0].content = "Question";
        return common_chat_templates_apply(templates, inputs);
    }
}

common_chat_parser_params parser_of(const common_chat_params & params) {
    common_chat_parser_params parser(params);
    parser.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    if (!params.parser.empty()) {
        parser.parser.load(params.parser);
    }
    return parser;
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

size_t n_whole_calls(const common_chat_msg & message) {
    return std::count_if(message.tool_calls.begin(), message.tool_calls.end(),
                         [](const common_chat_tool_call & call) { return eagle_is_json(call.arguments); });
}

// Reads a reply without types if its calls do not have those of their schemas. Returns true if it replaced the message.
bool read_loosely(const eagle_reply & reply, common_chat_msg & message) {
    const bool has_cut = !message.tool_calls.empty() && n_whole_calls(message) < message.tool_calls.size();
    const bool is_unread =
        message.tool_calls.empty() && eagle_read_reply(reply.text, reply.parser) == eagle_reading::failed;
    if (!has_cut && !is_unread) {
        return false;
    }
    common_chat_msg loose;
    try {
        loose = eagle_read_answer(reply.text, false, parser_of(applied(reply, true)));
    } catch (const std::runtime_error &) {  // some templates need the types
        return false;
    } catch (const std::invalid_argument &) {
        return false;
    }
    const bool is_better = n_whole_calls(loose) > n_whole_calls(message);
    message = is_better ? loose : message;
    return is_better;
}

// Parses the text so far, as task_result_state::update_chat_msg of the server does. A call that may still grow is left
// out.
common_json added(eagle_reply & reply, bool is_last) {
    common_chat_msg message = eagle_read_answer(reply.text, !is_last, reply.parser);
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

}  // namespace

int32_t eagle_reply_new(const char * request, eagle_reply ** reply, const char ** result) {
    return eagle_answered(result, [&] {
        auto made = std::make_unique<eagle_reply>();
        made->request = eagle_without_nulls(common_json::parse(request));
        made->templates = templates_of(made->request);
        const common_chat_params params = applied(*made);
        made->parser = parser_of(params);
        common_json found = common_json::object();
        found["stops"] = params.additional_stops;
        found["preserved_tokens"] = params.preserved_tokens;
        *reply = made.release();
        return found.dump();
    });
}

int32_t eagle_reply_follow(eagle_reply * reply, const char * prompt_end, const char ** result) {
    return eagle_answered(result, [&] {
        if (!follows(reply->parser.generation_prompt, prompt_end)) {
            reply->thinks = false;
            const common_chat_params params = applied(*reply);
            reply->thinks = !follows(params.generation_prompt, prompt_end);
            reply->parser = reply->thinks ? reply->parser : parser_of(params);
        }
        return std::string();
    });
}

int32_t eagle_reply_add(eagle_reply * reply, const char * text, size_t size, bool is_last, const char ** result) {
    return eagle_answered(result, [&] {
        reply->text.append(text, size);
        return added(*reply, is_last).dump();
    });
}

void eagle_reply_free(eagle_reply * reply) {
    delete reply;
}
