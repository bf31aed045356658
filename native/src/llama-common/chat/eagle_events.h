// Streams of OpenAI's Responses API and Anthropic's Messages API in the order of their references: each item ends
// before the next begins. Whole answers are made of the same items.
#pragma once

#include <cmath>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "chat.h"
#include "common.h"
#include "eagle_answers.h"
#include "eagle_chat.h"
#include "eagle_errors.h"
#include "eagle_items.h"
#include "eagle_reasoning.h"
#include "eagle_response_tools.h"
#include "json.h"

struct eagle_token_counts {
    int32_t n_prompt = 0;
    int32_t n_cached = 0;
    int32_t n_generated = 0;
    int32_t n_reasoning = 0;  // of those generated
};

// Splits the differences of a chat message into items: reasoning, text and calls.
class eagle_events {
  public:
    virtual ~eagle_events() = default;

    // Adds the events that come before the first item; does nothing the second time.
    void start(const std::string & model, const eagle_token_counts & counts) {
        if (!is_started_) {
            is_started_ = true;
            start_with(model, counts);
        }
    }

    void add(const std::vector<common_chat_msg_diff> & differences) {
        for (const auto & difference : differences) {
            write("reasoning", difference.reasoning_content_delta);
            write("text", difference.content_delta);
            if (difference.tool_call_index == std::string::npos) {
                continue;
            }
            if (item_.kind != "call" || call_ != difference.tool_call_index) {
                call_ = difference.tool_call_index;
                begin("call", difference.tool_call_delta.id, difference.tool_call_delta.name);
            }
            write("call", difference.tool_call_delta.arguments);
        }
    }

    // Adds the last events. reason: "limit" for an answer that reached one, "word" or "eos". word: the stop text.
    virtual void finish(const common_chat_msg & message, const std::string & reason, const std::string & word,
                        const eagle_token_counts & counts) = 0;

    // Returns the events since the last call.
    common_json take() {
        common_json events = events_;
        events_ = common_json::array();
        return events;
    }

    // Returns the complete answer; the events are its parts.
    virtual common_json whole() const = 0;

  protected:
    struct item {
        std::string kind, id, name, text;
        size_t index = 0;
    };

    virtual void start_with(const std::string & model, const eagle_token_counts & counts) = 0;
    virtual void begin_item(const item & item) = 0;
    virtual void extend_item(const item & item, const std::string & text) = 0;
    virtual void end_item(const item & item, bool is_whole) = 0;

    void end(bool is_whole = true) {
        if (!item_.kind.empty()) {
            end_item(item_, is_whole);
            item_.kind.clear();
        }
    }

    void send(const std::string & type, common_json data) {
        data["type"] = type;
        events_.push_back(common_json{{"event", type}, {"data", data}});
    }

  private:
    void begin(const std::string & kind, const std::string & id, const std::string & name) {
        end();
        item_ = {kind, id, name, "", n_items_++};
        begin_item(item_);
    }

    void write(const std::string & kind, const std::string & text) {
        if (text.empty()) {
            return;
        }
        if (item_.kind != kind) {
            begin(kind, "", "");
        }
        item_.text += text;
        extend_item(item_, text);
    }

    bool is_started_ = false;
    common_json events_ = common_json::array();
    item item_;
    size_t call_ = 0;
    size_t n_items_ = 0;
};

// Events of OpenAI's Responses API.
class eagle_response_events : public eagle_events {
  public:
    // request: the fields that a response repeats, of eagle_repeated_fields(). id: of the response, "resp_...".
    eagle_response_events(const common_json & request, const std::string & id, const std::string & model)
        : response_(request), id_(eagle_bare_id(id)) {
        response_["id"] = id;
        response_["model"] = model;
        response_["object"] = "response";
        response_["created_at"] = (int64_t) std::time(nullptr);
        response_["status"] = "in_progress";
        response_["output"] = common_json::array();
        response_["usage"] = nullptr;
    }

    void send_progress() { send_numbered("response.in_progress", common_json{{"response", response_}}); }

    void fail(const common_json & error) {
        start("", {});
        common_json data = {{"param", nullptr}};
        data["code"] = eagle_error_code(error);
        data["message"] = error.at("message");
        send_numbered("error", data);
        response_["status"] = "failed";
        response_["error"] = common_json{{"code", "server_error"}, {"message", error.at("message")}};
        send_numbered("response.failed", common_json{{"response", response_}});
    }

    void finish(const common_chat_msg & /*message*/, const std::string & reason, const std::string & /*word*/,
                const eagle_token_counts & counts) override {
        const bool is_whole = reason != "limit";
        end(is_whole);
        response_["status"] = is_whole ? "completed" : "incomplete";
        if (is_whole) {
            response_["completed_at"] = (int64_t) std::time(nullptr);
        } else {
            response_["incomplete_details"] = common_json{{"reason", "max_output_tokens"}};
        }
        response_["usage"] = common_json{
            {"input_tokens", counts.n_prompt},
            {"input_tokens_details", common_json{{"cached_tokens", counts.n_cached}}},
            {"output_tokens", counts.n_generated},
            {"output_tokens_details", common_json{{"reasoning_tokens", counts.n_reasoning}}},
            {"total_tokens", counts.n_prompt + counts.n_generated},
        };
        send_numbered(is_whole ? "response.completed" : "response.incomplete", common_json{{"response", response_}});
    }

    common_json whole() const override { return response_; }

  protected:
    void start_with(const std::string & /*model*/, const eagle_token_counts & /*counts*/) override {
        send_numbered("response.created", common_json{{"response", response_}});
        send_progress();
    }

    void begin_item(const item & item) override {
        tool_ = item.kind == "call" ? eagle_tool_named(response_.at("tools"), item.name) : eagle_named_tool();
        send_of("response.output_item.added", item, {{"item", output_of(item, "in_progress", false)}});
        if (item.kind != "call") {
            send_of_part("response.content_part.added", item, {{"part", part_of(item)}});
        }
    }

    void extend_item(const item & item, const std::string & text) override {
        common_json data = {{"delta", text}};
        if (item.kind == "call") {
            if (!tool_.is_custom) {  // whose input is known at its end
                send_of("response.function_call_arguments.delta", item, data);
            }
            return;
        }
        add_no_probabilities(item, data);
        send_of_part("response." + part_type(item) + ".delta", item, data);
    }

    void end_item(const item & item, bool is_whole) override {
        if (tool_.is_custom) {
            send_of("response.custom_tool_call_input.delta", item, {{"delta", input_of(item)}});
            send_of("response.custom_tool_call_input.done", item, {{"input", input_of(item)}});
        } else if (item.kind == "call") {
            send_of("response.function_call_arguments.done", item, {{"name", tool_.name}, {"arguments", item.text}});
        } else {
            common_json data = {{"text", item.text}};
            add_no_probabilities(item, data);
            send_of_part("response." + part_type(item) + ".done", item, data);
            send_of_part("response.content_part.done", item, {{"part", part_of(item)}});
        }
        const bool is_cut = item.kind == "call" && !eagle_is_json(item.text);  // by a stop text
        const common_json output = output_of(item, is_whole && !is_cut ? "completed" : "incomplete", true);
        send_of("response.output_item.done", item, {{"item", output}});
        response_["output"].push_back(output);
        eagle_items::keep(output);
    }

  private:
    static std::string part_type(const item & item) {
        return item.kind == "reasoning" ? "reasoning_text" : "output_text";
    }

    static void add_no_probabilities(const item & item, common_json & object) {
        if (item.kind == "text") {
            object["logprobs"] = common_json::array();
        }
    }

    static common_json part_of(const item & item) {
        common_json part = {{"type", part_type(item)}, {"text", item.text}};
        if (item.kind == "text") {
            part["annotations"] = common_json::array();
        }
        add_no_probabilities(item, part);
        return part;
    }

    // Returns the input of a call of a custom tool, which the model writes as an argument.
    static std::string input_of(const item & item) { return eagle_text_at(eagle_arguments_of(item.text), "input"); }

    // Returns an id that no other item of this server has, unlike those that models write for their calls.
    std::string id_of(const item & item) const {
        const char * prefix = item.kind == "text"        ? "msg_"
                              : item.kind == "reasoning" ? "rs_"
                              : tool_.is_custom          ? "ctc_"
                                                         : "fc_";
        return prefix + id_ + "_" + std::to_string(item.index);
    }

    common_json output_of(const item & item, const std::string & status, bool has_part) const {
        common_json output = {{"id", id_of(item)}, {"status", status}};
        if (item.kind == "call") {
            output["type"] = tool_.is_custom ? "custom_tool_call" : "function_call";
            output["call_id"] = "call_" + eagle_bare_id(item.id);
            output["name"] = tool_.name;
            output[tool_.is_custom ? "input" : "arguments"] = tool_.is_custom ? input_of(item) : item.text;
            if (!tool_.name_space.empty()) {
                output["namespace"] = tool_.name_space;
            }
            return output;
        }
        output["type"] = item.kind == "text" ? "message" : "reasoning";
        output["content"] = has_part ? common_json::array({part_of(item)}) : common_json::array();
        if (item.kind == "text") {
            output["role"] = "assistant";
        } else {
            output["summary"] = common_json::array();
            output["encrypted_content"] = "";
        }
        return output;
    }

    void send_numbered(const std::string & type, common_json data) {
        data["sequence_number"] = n_events_++;
        send(type, data);
    }

    void send_of(const std::string & type, const item & item, common_json data) {
        data["output_index"] = item.index;
        if (!data.contains("item")) {
            data["item_id"] = id_of(item);
        }
        send_numbered(type, data);
    }

    void send_of_part(const std::string & type, const item & item, common_json data) {
        data["content_index"] = 0;
        send_of(type, item, data);
    }

    common_json response_;
    std::string id_;
    eagle_named_tool tool_;  // that the current item calls
    int64_t n_events_ = 0;
};

// Events of Anthropic's Messages API.
class eagle_message_events : public eagle_events {
  public:
    explicit eagle_message_events(const std::string & id)
        : message_{
              {"id", id},    {"type", "message"},      {"role", "assistant"},     {"content", common_json::array()},
              {"model", ""}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}} {}

    void finish(const common_chat_msg & message, const std::string & reason, const std::string & word,
                const eagle_token_counts & counts) override {
        end();
        message_["stop_reason"] = reason == "limit" ? std::string("max_tokens") : eagle_stop_reason(message, word);
        message_["stop_sequence"] = word.empty() ? common_json(nullptr) : common_json(word);
        message_["usage"] = usage_of(counts);
        const common_json delta = {{"stop_reason", message_.at("stop_reason")},
                                   {"stop_sequence", message_.at("stop_sequence")}};
        send("message_delta", common_json{{"delta", delta}, {"usage", message_.at("usage")}});
        send("message_stop", common_json::object());
    }

    common_json whole() const override { return message_; }

  protected:
    void start_with(const std::string & model, const eagle_token_counts & counts) override {
        message_["model"] = model;
        message_["usage"] = usage_of({counts.n_prompt, counts.n_cached, 0});
        send("message_start", common_json{{"message", message_}});
    }

    void begin_item(const item & item) override {
        send_of("content_block_start", item, "content_block", block_of(item));
    }

    void extend_item(const item & item, const std::string & text) override {
        common_json delta = {{"type", item.kind == "call"   ? "input_json_delta"
                                      : item.kind == "text" ? "text_delta"
                                                            : "thinking_delta"}};
        delta[item.kind == "call" ? "partial_json" : item.kind == "text" ? "text" : "thinking"] = text;
        send_of("content_block_delta", item, "delta", delta);
    }

    void end_item(const item & item, bool /*is_whole*/) override {
        if (item.kind == "reasoning") {  // clients require a signature; this one is empty, nobody checks it
            send_of("content_block_delta", item, "delta", common_json{{"type", "signature_delta"}, {"signature", ""}});
        }
        send("content_block_stop", common_json{{"index", item.index}});
        common_json block = block_of(item);
        if (item.kind == "call") {
            block["input"] = eagle_arguments_of(item.text);
        } else {
            block[item.kind == "text" ? "text" : "thinking"] = item.text;
        }
        message_["content"].push_back(block);
    }

  private:
    static common_json usage_of(const eagle_token_counts & counts) {
        return common_json{{"input_tokens", counts.n_prompt - counts.n_cached},
                           {"cache_creation_input_tokens", 0},
                           {"cache_read_input_tokens", counts.n_cached},
                           {"output_tokens", counts.n_generated}};
    }

    static common_json block_of(const item & item) {
        if (item.kind == "call") {
            const std::string id = "toolu_" + eagle_bare_id(item.id);
            return common_json{{"type", "tool_use"}, {"id", id}, {"name", item.name}, {"input", common_json::object()}};
        }
        if (item.kind == "text") {
            return common_json{{"type", "text"}, {"text", ""}};
        }
        return common_json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    }

    void send_of(const std::string & type, const item & item, const char * key, const common_json & value) {
        common_json data = {{"index", item.index}};
        data[key] = value;
        send(type, data);
    }

    common_json message_;
};

// Sends the events of a failed response of OpenAI's Responses API. Returns null for other APIs.
template <typename States>
eagle_events * eagle_failed_response(const States & states, const common_json & error) {
    auto * events = states.empty() ? nullptr : dynamic_cast<eagle_response_events *>(states.front().events.get());
    if (events) {
        events->fail(error);
    }
    return events;
}

// Returns the repeated fields of a request, with the sampling that it did not set.
inline common_json eagle_with_sampling(common_json fields, const common_params_sampling & sampling) {
    const auto rounded = [](float value) { return std::round(value * 1e6) / 1e6; };
    if (!fields.is_object()) {
        fields = common_json::object();
    }
    if (!eagle_has(fields, "temperature")) {
        fields["temperature"] = rounded(sampling.temp);
    }
    if (!eagle_has(fields, "top_p")) {
        fields["top_p"] = rounded(sampling.top_p);
    }
    return fields;
}

// Returns the reasoning in the differences of a message.
inline std::string eagle_reasoning_in(const std::vector<common_chat_msg_diff> & differences) {
    std::string reasoning;
    for (const auto & difference : differences) {
        reasoning += difference.reasoning_content_delta;
    }
    return reasoning;
}

inline common_chat_msg_diff eagle_text_difference(const std::string & text) {
    common_chat_msg_diff difference;
    difference.content_delta = text;
    return difference;
}

// Returns the content of a stream's first piece, as OpenAI sends it: "" before text, null before anything else.
inline common_json eagle_first_content(const std::vector<common_chat_msg_diff> & differences) {
    const bool is_text = !differences.empty() && !differences.front().content_delta.empty();
    return is_text ? common_json("") : common_json(nullptr);
}
