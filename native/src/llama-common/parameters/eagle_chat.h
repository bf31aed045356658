// Normalizes chat requests: messages, tools and tool_choice in the form that llama.cpp's chat parsers expect. Throws
// std::invalid_argument for invalid requests; the server responds with status 400.
#pragma once

#include <algorithm>
#include <cmath>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "common.h"
#include "eagle_literals.h"
#include "eagle_sampler.h"
#include "eagle_tokens.h"
#include "eagle_unenforced.h"
#include "json-schema-to-grammar.h"
#include "json.h"

constexpr int64_t EAGLE_MAX_PROMPT_ALTERNATIVES = 100;  // per token of a prompt, whose probabilities are kept together

enum class eagle_api { own, completion, chat };  // llama.cpp's, OpenAI's completions, and the APIs with messages

// Returns true if an exception in a request's handler is the server's fault; all others are errors in the request.
inline bool eagle_is_server_fault(const std::exception & error) {
    return dynamic_cast<const std::bad_alloc *>(&error) || dynamic_cast<const std::system_error *>(&error);
}

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

inline void eagle_erase_null(common_json & object, const std::string & key) {
    if (object.contains(key) && object.at(key).is_null()) {
        object.erase(key);
    }
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

// Returns an id without the API's prefix: the id of a call as the model wrote it.
inline std::string eagle_bare_id(const std::string & id) {
    for (const std::string prefix : {"call_", "toolu_", "resp_"}) {
        if (id.size() > prefix.size() && id.compare(0, prefix.size(), prefix) == 0) {
            return id.substr(prefix.size());
        }
    }
    return id;
}

// Returns the text of a message's content; joins parts like llama.cpp.
inline std::string eagle_text_of(const common_json & content) {
    if (!content.is_array()) {
        return content.is_string() ? content.get<std::string>() : std::string();
    }
    std::string text;
    for (const auto & part : content) {
        const bool is_text = eagle_text_at(part, "type") == "text";
        text += (is_text && !text.empty() ? "\n" : "") + eagle_text_at(part, "text");
    }
    return text;
}

// Reads an optional text: null counts as absent, another type is an error that names the key.
inline void eagle_read_text(common_json & object, const std::string & key, const std::string & where) {
    eagle_erase_null(object, key);
    eagle_require(!object.contains(key) || object.at(key).is_string(), where + " has a '" + key + "' that is no text");
}

// Sets the type of text parts, which depends on the role; clients send earlier answers back unchanged.
inline void eagle_name_parts(common_json & parts, const char * name) {
    for (size_t i = 0; parts.is_array() && i < parts.size(); i++) {
        common_json & part = parts.at(i);
        const std::string type = eagle_text_at(part, "type");
        if (type == "refusal") {
            part["text"] = eagle_text_at(part, "refusal");
        }
        if (type == "text" || type == "input_text" || type == "output_text" || type == "refusal") {
            part["type"] = name;
        }
    }
}

// Returns the arguments of an earlier call as the text of a JSON object.
inline void eagle_read_arguments(common_json & call, const std::string & where) {
    const std::string type = eagle_text_at(call, "type");
    eagle_require(type.empty() || type == "function",
                  where + " has a tool call of type '" + type + "', which this server does not read");
    eagle_require(eagle_has(call, "function") && !eagle_text_at(call.at("function"), "name").empty(),
                  where + " has a tool call without a function name");
    common_json & function = call.at("function");
    const std::string name = eagle_text_at(function, "name");
    const common_json given = eagle_has(function, "arguments") ? function.at("arguments") : common_json::object();
    const std::string text = !given.is_string()               ? given.dump()
                             : given == "" || given == "null" ? "{}"
                                                              : given.get<std::string>();
    const common_json arguments = common_json::parse_no_throw(text);
    eagle_require(!arguments.is_discarded() && arguments.is_object(),
                  where + " calls " + name + " with arguments that are no JSON object");
    function["arguments"] = text;
    if (!eagle_has(call, "type")) {
        call["type"] = "function";
    }
    eagle_read_text(call, "id", where + ": a tool call");
}

inline void eagle_require_parts(const common_json & content, const std::string & where) {
    for (size_t i = 0; content.is_array() && i < content.size(); i++) {
        const std::string type = eagle_text_at(content.at(i), "type");
        const bool is_known = type == "text" || type == "image_url" || type == "input_audio" || type == "input_video" ||
                              type == "video_url";
        eagle_require(is_known, where + " has a part of type '" + type + "', which this server does not read");
    }
}

// Removes a list without calls, which clients send with earlier answers: it equals none.
inline void eagle_erase_no_calls(common_json & message) {
    const bool has_list = message.contains("tool_calls") && message.at("tool_calls").is_array();
    if (has_list && message.at("tool_calls").empty()) {
        message.erase("tool_calls");
        if (!message.contains("content")) {  // llama.cpp requires one of the two
            message["content"] = "";
        }
    }
    eagle_erase_null(message, "tool_calls");
}

inline void eagle_read_message(common_json & message, const std::string & where) {
    eagle_require(message.is_object(), where + " is no object");
    eagle_require(!eagle_text_at(message, "role").empty(), where + " has no role");
    eagle_erase_no_calls(message);
    if (!eagle_has(message, "reasoning_content") && !eagle_text_at(message, "reasoning").empty()) {
        message["reasoning_content"] = message.at("reasoning");  // the newer name that other servers use
    }
    for (const char * key : {"name", "tool_call_id", "reasoning_content"}) {
        eagle_read_text(message, key, where);
    }
    eagle_require(!eagle_has(message, "audio"), where + " has 'audio', which this server does not read");
    if (eagle_has(message, "refusal") && (!eagle_has(message, "content") || message.at("content").empty())) {
        message["content"] = message.at("refusal");
    }
    if (message.contains("content")) {
        eagle_name_parts(message["content"], "text");
        eagle_require_parts(message.at("content"), where);
    }
    if (eagle_text_at(message, "role") == "developer") {
        message["role"] = "system";
    }
    if (!message.contains("tool_calls")) {
        return;
    }
    common_json & calls = message.at("tool_calls");
    eagle_require(calls.is_array(), where + " has tool_calls that are no list");
    for (size_t i = 0; i < calls.size(); i++) {
        eagle_read_arguments(calls.at(i), where);
    }
}

// Returns true if a message adds nothing to the prompt.
inline bool eagle_is_empty_answer(const common_json & message) {
    const bool has_parts =
        eagle_has(message, "content") && !message.at("content").is_string() && !message.at("content").empty();
    return eagle_text_at(message, "role") == "assistant" && !has_parts && eagle_text_at(message, "content").empty() &&
           eagle_text_at(message, "reasoning_content").empty() && !eagle_has(message, "tool_calls");
}

// Returns true if the model continues a last answer. is_usual: it does so unless the request says otherwise.
inline bool eagle_continues(const common_json & body, bool is_usual) {
    return eagle_has(body, "continue_final_message") ? body.at("continue_final_message") != false : is_usual;
}

// Checks a request's messages and removes an empty last answer, which has nothing to continue. Invalidates references
// into the body.
inline void eagle_read_messages(common_json & body) {
    common_json & messages = body.at("messages");
    eagle_require(messages.is_array(), "'messages' is no list");
    eagle_require(!messages.empty(), "'messages' is empty: send at least one message");
    for (size_t i = 0; i < messages.size(); i++) {
        eagle_read_message(messages.at(i), "message " + std::to_string(i + 1));
    }
    const size_t n_given = messages.size();
    while (messages.size() > 1 && eagle_is_empty_answer(messages.back())) {
        messages.erase(messages.size() - 1);
    }
    if (messages.size() < n_given) {
        body.erase("continue_final_message");
        body["add_generation_prompt"] = true;
    }
}

// Throws unless a strict tool's schema has a grammar. tool: as an API has it. key: of its schema.
inline void eagle_require_strict(const common_json & tool, const char * key) {
    if (!eagle_has(tool, "strict") || tool.at("strict") != true || !eagle_has(tool, key)) {
        return;
    }
    std::string fault;
    try {
        const std::string grammar = json_schema_to_grammar(tool.at(key));
        fault = eagle_grammar_check(nullptr, grammar.c_str(), "root") == EAGLE_OK ? "" : eagle_last_error();
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        fault = error.what();
    }
    eagle_require(fault.empty(), "the tool '" + eagle_text_at(tool, "name") +
                                     "' is strict, but its schema has no grammar (" + fault +
                                     "): correct it, or leave out 'strict'");
}

inline void eagle_read_tool(common_json & tool) {
    const std::string type = eagle_text_at(tool, "type");
    eagle_require(type.empty() || type == "function",
                  "a tool has the type '" + type + "', which this server does not know: send functions");
    eagle_require(tool.is_object() && eagle_has(tool, "function"), "a tool has no function");
    common_json & function = tool.at("function");
    eagle_require(!eagle_text_at(function, "name").empty(), "a tool's function has no name");
    eagle_read_text(function, "description", "the tool '" + eagle_text_at(function, "name") + "'");
    eagle_erase_null(function, "parameters");
    eagle_require_strict(function, "parameters");
    if (function.contains("parameters") && !function.at("parameters").is_object()) {
        eagle_note_unenforced("parameters that are no schema");
        function.erase("parameters");
    }
    if (!eagle_has(tool, "type")) {
        tool["type"] = "function";
    }
}

inline void eagle_read_tools(common_json & tools) {
    eagle_require(tools.is_null() || tools.is_array(), "'tools' is no list");
    for (size_t i = 0; i < tools.size(); i++) {
        eagle_read_tool(tools.at(i));
    }
    if (!tools.is_null() && eagle_literals::is_on()) {
        tools = eagle_literals::hidden_tools(tools);
    }
}

// Keeps the tools with these names; throws if one is missing.
inline void eagle_keep_tools(common_json & tools, const std::vector<std::string> & names) {
    common_json kept = common_json::array();
    std::set<std::string> found;
    for (const auto & tool : tools) {
        const std::string name = eagle_text_at(tool.at("function"), "name");
        if (std::find(names.begin(), names.end(), name) != names.end()) {
            kept.push_back(tool);
            found.insert(name);
        }
    }
    for (const std::string & name : names) {
        eagle_require(found.count(name) > 0, "tool_choice names '" + name + "', which is not in 'tools'");
    }
    tools = kept;
}

// Returns the name of a function, in the form of Chat Completions or of Responses (without "function").
inline std::string eagle_function_name(const common_json & given) {
    return eagle_text_at(eagle_has(given, "function") ? given.at("function") : given, "name");
}

// Keeps the tools of {"type": "allowed_tools", "mode": ..., "tools": [...]}, the form of Responses; Chat Completions
// has mode and tools one level deeper. Returns the mode.
inline std::string eagle_read_allowed_tools(const common_json & choice, common_json & tools) {
    const common_json & given = eagle_has(choice, "allowed_tools") ? choice.at("allowed_tools") : choice;
    const std::string mode = eagle_has(given, "mode") ? eagle_text_at(given, "mode") : "auto";
    eagle_require(mode == "auto" || mode == "required", "tool_choice.mode is not auto or required");
    eagle_require(eagle_has(given, "tools") && given.at("tools").is_array() && !given.at("tools").empty(),
                  "tool_choice of type allowed_tools has no list 'tools'");
    std::vector<std::string> names;
    for (const auto & tool : given.at("tools")) {
        names.push_back(eagle_function_name(tool));
    }
    eagle_keep_tools(tools, names);
    return mode;
}

// Converts a tool_choice in OpenAI's or Anthropic's form to "auto", "none" or "required". A named choice removes all
// other tools.
inline std::string eagle_read_tool_choice(const common_json & body, common_json & tools) {
    if (!eagle_has(body, "tool_choice")) {
        return "auto";
    }
    const common_json & given = body.at("tool_choice");
    eagle_require(given.is_string() || given.is_object(), "tool_choice is neither a text nor an object");
    std::string choice = given.is_string() ? given.get<std::string>() : eagle_text_at(given, "type");
    if (given.is_object() && (choice == "function" || choice == "tool" || choice == "custom")) {
        eagle_keep_tools(tools, {eagle_function_name(given)});
        choice = "required";
    }
    if (choice == "allowed_tools") {
        choice = eagle_read_allowed_tools(given, tools);
    }
    choice = choice == "any" ? "required" : choice;
    eagle_require(choice == "auto" || choice == "none" || choice == "required",
                  "tool_choice '" + choice + "' is not auto, none, required, any, allowed_tools or a tool's name");
    eagle_require(choice != "required" || !tools.empty(), "tool_choice requires a call, but there are no tools");
    return choice;
}

inline bool eagle_has_later_system(const common_json & messages) {
    for (size_t i = 1; i < messages.size(); i++) {
        if (eagle_text_at(messages.at(i), "role") == "system") {
            return true;
        }
    }
    return false;
}

// Moves system messages between a call and its results behind the results, where a template may lose them.
inline void eagle_move_behind_results(common_json & messages) {
    common_json moved = common_json::array(), held = common_json::array();
    const auto release = [&] {
        for (const auto & message : held) {
            moved.push_back(message);
        }
        held = common_json::array();
    };
    for (size_t i = 0; i < messages.size(); i++) {
        size_t next = i;
        while (next < messages.size() && eagle_text_at(messages.at(next), "role") == "system") {
            next++;
        }
        const bool precedes_result = next < messages.size() && eagle_text_at(messages.at(next), "role") == "tool";
        if (next > i && precedes_result) {
            held.push_back(messages.at(i));
            continue;
        }
        if (next > i || !precedes_result) {
            release();
        }
        moved.push_back(messages.at(i));
    }
    release();
    messages = moved;
}

// Merges the system messages at the beginning. Later ones become texts of the user at their places: at the beginning
// they would change the whole prompt.
inline void eagle_move_systems(common_json & messages) {
    common_json found = common_json::array();
    std::string text;
    size_t i = 0;
    for (; i < messages.size() && eagle_text_at(messages.at(i), "role") == "system"; i++) {
        text += (text.empty() ? "" : "\n\n") + eagle_text_of(messages.at(i).at("content"));
    }
    if (i > 0) {
        common_json system = common_json{{"role", "system"}};
        system["content"] = text;
        found.push_back(system);
    }
    for (; i < messages.size(); i++) {
        common_json message = messages.at(i);
        message["role"] = eagle_text_at(message, "role") == "system" ? "user" : eagle_text_at(message, "role");
        found.push_back(message);
    }
    messages = found;
}

// Returns a test conversation with system messages at several places, for eagle_shows_systems.
inline common_json eagle_systems_trial() {
    const auto message = [](const char * role, const char * content) {
        return common_json{{"role", role}, {"content", content}};
    };
    common_json messages = common_json::array();
    messages.push_back(message("system", "EAGLE_MARK_0"));
    messages.push_back(message("system", "EAGLE_MARK_1"));
    messages.push_back(message("user", "User message"));
    messages.push_back(message("assistant", "Answer"));
    messages.push_back(message("system", "EAGLE_MARK_2"));
    messages.push_back(message("user", "User message"));
    return messages;
}

inline bool eagle_shows_systems(const std::string & prompt) {
    return prompt.find("EAGLE_MARK_0") != std::string::npos && prompt.find("EAGLE_MARK_1") != std::string::npos &&
           prompt.find("EAGLE_MARK_2") != std::string::npos;
}

// Moves system messages if the template refuses or drops later ones. render(messages): renders a prompt.
template <typename Render>
void eagle_place_systems(common_json & messages, const Render & render) {
    if (!eagle_has_later_system(messages)) {
        return;
    }
    eagle_move_behind_results(messages);
    bool takes_all = false;
    try {
        takes_all = eagle_shows_systems(render(eagle_systems_trial()));
    } catch (const std::exception &) {
    }
    if (!takes_all) {
        eagle_move_systems(messages);
    }
}

// Prepends the system message to the text of the next message, for a template without system messages; a system message
// alone becomes a question.
inline void eagle_system_into_next(common_json & messages) {
    if (messages.empty() || eagle_text_at(messages.front(), "role") != "system") {
        return;
    }
    if (messages.size() == 1) {
        messages.at(0)["role"] = "user";
        return;
    }
    common_json & next = messages.at(1);
    const std::string text = eagle_has(next, "content") ? eagle_text_of(next.at("content")) : std::string();
    next["content"] = eagle_text_of(messages.front().at("content")) + "\n" + text;
    messages.erase(0);
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

// Refuses suffix and best_of, which are not supported.
inline void eagle_refuse_others(const common_json & body) {
    eagle_require(!eagle_has(body, "suffix") || body.at("suffix") == "",
                  "this server does not complete before a 'suffix': leave it out, or use /infill");
    const common_json best_of = eagle_has(body, "best_of") ? body.at("best_of") : common_json(1);
    eagle_require(best_of == 1 || best_of == body.value("n", common_json(1)),
                  "this server does not choose the 'best_of' several: leave it out");
}

// Refuses keys that only the server itself sets, from the chat template: a client's parser could refer to itself, and a
// client's pattern could take exponential time after each token.
inline void eagle_refuse_internal(const common_json & body) {
    for (const char * key : {"chat_format", "chat_parser"}) {
        eagle_require(!eagle_has(body, key), "'" + std::string(key) + "' is set by the server: leave it out");
    }
    if (eagle_has(body, "grammar_triggers") && body.at("grammar_triggers").is_array()) {
        for (const auto & trigger : body.at("grammar_triggers")) {
            const bool has_type = eagle_has(trigger, "type") && trigger.at("type").is_number_integer();
            const int64_t type = has_type ? trigger.at("type").get<int64_t>() : -1;
            const bool is_template = eagle_text_at(body, "grammar_type") == "tool_calls";  // the front asks for a call
            eagle_require(
                is_template || type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN || type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD,
                "'grammar_triggers' are tokens (type 0) and words (type 1)");
            if (type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN) {
                eagle_require_tokens(trigger.value("token", common_json()));
            }
        }
    }
}

// Checks the constraints of an answer: their types, and that a grammar is the only one. llama.cpp ignores the others.
inline void eagle_require_constraints(const common_json & body) {
    const auto is_object = [](const common_json & owner, const char * key) {
        return !eagle_has(owner, key) || owner.at(key).is_object();
    };
    eagle_refuse_internal(body);
    eagle_require(!eagle_has(body, "grammar") || body.at("grammar").is_string(), "'grammar' is no text");
    eagle_require(!eagle_has(body, "stop") || body.at("stop").is_string() || body.at("stop").is_array(),
                  "'stop' is neither a text nor a list");
    for (size_t i = 0; eagle_has(body, "stop") && body.at("stop").is_array() && i < body.at("stop").size(); i++) {
        eagle_require(body.at("stop").at(i).is_string(), "'stop' has a part that is no text");
    }
    eagle_require(is_object(body, "chat_template_kwargs"), "'chat_template_kwargs' is no object");
    eagle_require(is_object(body, "response_format"), "'response_format' is no object");
    bool has_schema = eagle_has(body, "json_schema");
    if (eagle_has(body, "response_format")) {
        const common_json & format = body.at("response_format");
        eagle_require(!eagle_has(format, "type") || format.at("type").is_string(), "'response_format.type' is no text");
        const std::string type = eagle_text_at(format, "type");
        has_schema = has_schema || type == "json_object" || type == "json_schema";
        eagle_require(is_object(format, "schema"), "'response_format.schema' is no object");
        eagle_require(is_object(format, "json_schema"), "'response_format.json_schema' is no object");
        if (eagle_has(format, "json_schema")) {
            eagle_require(is_object(format.at("json_schema"), "schema"),
                          "'response_format.json_schema.schema' is no object");
        }
        eagle_require(type != "json_schema" || !eagle_has(format, "schema") || eagle_has(format, "json_schema"),
                      "'response_format.schema' belongs into 'json_schema'");
    }
    eagle_require(!has_schema || eagle_text_at(body, "grammar").empty(),
                  "'grammar' and a JSON schema exclude each other: omit one");
}

// Throws where a prompt's tokens have no probabilities, or too many for the memory. wanted: alternatives per token.
inline void eagle_require_prompt_probs(const common_json & body, const common_json & wanted) {
    eagle_require(!wanted.is_number() || wanted.get<int64_t>() <= EAGLE_MAX_PROMPT_ALTERNATIVES,
                  "with 'echo', 'logprobs' is at most " + std::to_string(EAGLE_MAX_PROMPT_ALTERNATIVES));
    eagle_require(!eagle_has(body, "post_sampling_probs") || body.at("post_sampling_probs") == false,
                  "'post_sampling_probs' is for answers: leave it out, or leave out 'echo'");
    const common_json prompts =
        body.at("prompt").is_array() ? body.at("prompt") : common_json::array({body.at("prompt")});
    for (const auto & prompt : prompts) {
        eagle_require(!eagle_has(prompt, "multimodal_data"),
                      "prompts with media have no 'logprobs': leave them out, or leave out 'echo'");
    }
}

// Throws for settings of the wrong type, which llama.cpp would replace by their defaults.
inline void eagle_require_types(const common_json & body) {
    for (const char * key : {"stream", "parallel_tool_calls", "add_generation_prompt", "echo", "return_tokens"}) {
        eagle_require(!eagle_has(body, key) || body.at(key).is_boolean(),
                      "'" + std::string(key) + "' is not true or false");
    }
    for (const char * key : {"n", "n_cmpl"}) {
        const double n = !eagle_has(body, key) ? 1 : body.at(key).is_number() ? body.at(key).get<double>() : 0.5;
        eagle_require(n == std::floor(n), "'" + std::string(key) + "' is no whole number");
    }
    const common_json options = eagle_has(body, "stream_options") ? body.at("stream_options") : common_json::object();
    eagle_require(options.is_object(), "'stream_options' is no object");
    eagle_require(!eagle_has(options, "include_usage") || options.at("include_usage").is_boolean(),
                  "'stream_options.include_usage' is not true or false");
}

// Throws for keys that an API does not support; the constraints of chats have been read before. Returns the API.
inline eagle_api eagle_require_supported(const common_json & body, eagle_api api) {
    eagle_require(body.is_object(), "the body is no JSON object");
    eagle_require(body.contains("prompt"), "'prompt' is required");
    eagle_require_tokens(body.at("prompt"));
    eagle_require_types(body);
    eagle_refuse_others(body);
    if (api != eagle_api::chat) {
        eagle_require_constraints(body);
        const bool is_text =
            !eagle_has(body, "response_format") || eagle_text_at(body.at("response_format"), "type") == "text";
        eagle_require(is_text, "'response_format' is for chats: use 'json_schema' or 'grammar'");
    }
    if (eagle_has(body, "n_prompt_probs")) {
        const common_json & wanted = body.at("n_prompt_probs");
        eagle_require(wanted.is_number_integer() && wanted.get<int64_t>() >= 0,
                      "'n_prompt_probs' is a number of alternatives, at least 0");
        eagle_require_prompt_probs(body, wanted);
    }
    if (!eagle_has(body, "echo") || body.at("echo") == false) {
        return api;
    }
    if (api == eagle_api::completion && eagle_has(body, "logprobs") && body.at("logprobs") != false) {
        eagle_require_prompt_probs(body, body.at("logprobs"));
    }
    eagle_require(api != eagle_api::own, "this API does not echo prompts: leave out 'echo', or use /v1/completions");
    eagle_require(api != eagle_api::chat || eagle_has(body, "continue_final_message"),
                  "chats do not echo prompts: leave out 'echo', or add 'continue_final_message'");
    return api;
}
