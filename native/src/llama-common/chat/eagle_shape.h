// The form of OpenAI's answers where llama.cpp's differs: token probabilities, echo, and the usage of streams.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "eagle_answers.h"
#include "eagle_chat.h"
#include "json.h"

// Returns the number of alternatives that a request wants per token; -1: all that the answer has.
inline int64_t eagle_n_alternatives(const common_json & request, eagle_api api) {
    if (api == eagle_api::own || !eagle_has(request, "logprobs")) {
        return -1;
    }
    const common_json & wanted = request.at("logprobs");
    if (api == eagle_api::completion) {
        return wanted.is_number() ? wanted.get<int64_t>() : 0;
    }
    return eagle_has(request, "top_logprobs") ? request.at("top_logprobs").get<int64_t>() : 0;
}

// Sets the number of probabilities that the engine keeps per token for `logprobs` of OpenAI's completions, where 0
// means those of the tokens alone.
inline void eagle_read_logprobs(common_json & body) {
    if (!eagle_has(body, "logprobs") || body.at("logprobs") == false) {
        return;
    }
    const common_json & wanted = body.at("logprobs");
    eagle_require(wanted.is_boolean() || (wanted.is_number_integer() && wanted.get<int64_t>() >= 0),
                  "'logprobs' is a number of alternatives, at least 0");
    const int64_t n_alternatives = wanted.is_boolean() ? 0 : wanted.get<int64_t>();
    body["n_probs"] = std::max<int64_t>(1, n_alternatives);
}

// Returns the prompts that a request wants before its answers. detokenize(list): the text of tokens.
template <typename Detokenize>
std::vector<std::string> eagle_echoed(const common_json & request, eagle_api api, const Detokenize & detokenize) {
    std::vector<std::string> texts;
    if (api != eagle_api::completion || !eagle_has(request, "echo") || request.at("echo") == false) {
        return texts;
    }
    const auto text_of = [&](const common_json & prompt) {
        return prompt.is_string()   ? prompt.get<std::string>()
               : prompt.is_object() ? eagle_text_at(prompt, "prompt_string")
                                    : detokenize(prompt);
    };
    const common_json & prompt = request.at("prompt");
    if (!prompt.is_array() || prompt.empty() || prompt.at(size_t(0)).is_number()) {
        texts.push_back(text_of(prompt));
        return texts;
    }
    for (const auto & each : prompt) {
        texts.push_back(text_of(each));
    }
    return texts;
}

inline size_t eagle_n_characters(const std::string & text) {
    return (size_t) std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// Shapes the results of one request, whole or chunk by chunk.
class eagle_shape {
  public:
    // prompts: the texts that are repeated before the answers, one for each prompt; empty without echo.
    eagle_shape(const common_json & request, eagle_api api, std::vector<std::string> prompts = {})
        : api_(api),
          n_alternatives_(eagle_n_alternatives(request, api)),
          n_answers_(std::max<int64_t>(1, request.value("n_cmpl", request.value("n", int64_t(1))))),
          prompts_(std::move(prompts)),
          is_stream_(request.value("stream", false)) {
        const bool has_options = eagle_has(request, "stream_options") && request.at("stream_options").is_object();
        has_usage_ = has_options && request.at("stream_options").value("include_usage", false);
    }

    // Shapes a result: an object, or the objects of several chunks.
    void apply(common_json & result) {
        if (api_ == eagle_api::own) {
            return;
        }
        if (!result.is_array()) {
            apply_to_object(result);
            return;
        }
        common_json kept = common_json::array();
        for (auto & chunk : result) {
            apply_to_object(chunk);
            if (!chunk.contains("choices") || !chunk.at("choices").empty()) {
                kept.push_back(chunk);
            }
        }
        result = kept;
    }

    // Returns true if choice `i` is the first one of its prompt.
    bool is_new_prompt(size_t i) const { return i % (size_t) n_answers_ == 0; }

    // Returns the chunk that ends a stream, with the usage of all answers; empty if the request did not want it.
    common_json last_chunks() const { return last_.is_null() ? common_json::array() : last_; }

  private:
    void apply_to_object(common_json & object) {
        if (!object.is_object() || !object.contains("choices")) {
            return;
        }
        for (auto & choice : object["choices"]) {
            apply_to_choice(choice);
        }
        if (is_stream_ && has_usage_ && object.contains("usage")) {
            add_usage(object);
        }
    }

    void apply_to_choice(common_json & choice) {
        const size_t index = choice.value("index", size_t(0));
        const size_t i_prompt = index / (size_t) n_answers_;
        size_t & n_before = n_characters_[index];
        if (i_prompt < prompts_.size() && n_before == 0) {
            choice["text"] = prompts_[i_prompt] + eagle_text_at(choice, "text");
            n_before = eagle_n_characters(prompts_[i_prompt]);
        }
        if (!eagle_has(choice, "logprobs") || !eagle_has(choice.at("logprobs"), "content")) {
            return;
        }
        common_json & logprobs = choice["logprobs"];
        for (auto & token : logprobs["content"]) {
            const char * key = token.contains("top_probs") ? "top_probs" : "top_logprobs";
            while (n_alternatives_ >= 0 && token.contains(key) && token.at(key).size() > (size_t) n_alternatives_) {
                token[key].erase(token.at(key).size() - 1);
            }
        }
        if (api_ == eagle_api::completion) {
            add_lists(logprobs, n_before);
        }
    }

    // Adds the lists of OpenAI's completions. The alternatives include the token itself.
    static void add_lists(common_json & logprobs, size_t & n_before) {
        const auto value = [](const common_json & token) {
            return token.contains("prob") ? std::log(token.at("prob").get<double>())
                                          : token.at("logprob").get<double>();
        };
        for (const char * key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
            logprobs[key] = common_json::array();
        }
        for (const auto & token : logprobs.at("content")) {
            const std::string text = eagle_text_at(token, "token");
            common_json alternatives = common_json::object();
            for (const auto & other : token.at(token.contains("top_probs") ? "top_probs" : "top_logprobs")) {
                const std::string name = eagle_text_at(other, "token");
                if (!alternatives.contains(name)) {  // the first of several tokens with one text is the likeliest
                    alternatives[name] = value(other);
                }
            }
            alternatives[text] = value(token);
            logprobs["tokens"].push_back(text);
            logprobs["token_logprobs"].push_back(value(token));
            logprobs["top_logprobs"].push_back(alternatives);
            logprobs["text_offset"].push_back(n_before);
            n_before += eagle_n_characters(text);
        }
    }

    // Moves the usage of an answer to the last chunk. Chats have one prompt, and a chunk of its own for the usage.
    void add_usage(common_json & chunk) {
        const bool has_choice = !chunk.at("choices").empty();
        const size_t index = has_choice ? chunk.at("choices").at(size_t(0)).value("index", size_t(0)) : 0;
        const common_json usage = common_json{{"usage", chunk.at("usage")}};
        chunk.erase("usage");
        if (last_.is_null()) {
            last_ = chunk;
            last_["choices"] = common_json::array();
            last_["usage"] = usage.at("usage");
            last_["usage"]["prompt_tokens"] = 0;
            last_["usage"]["completion_tokens"] = 0;
            last_["usage"]["total_tokens"] = 0;
        }
        eagle_add_usage(last_, usage, counted_.insert(index / (size_t) n_answers_).second);
        if (chunk.contains("timings")) {
            last_["timings"] = chunk.at("timings");
        }
    }

    eagle_api api_;
    int64_t n_alternatives_;
    int64_t n_answers_;
    std::vector<std::string> prompts_;
    bool is_stream_;
    bool has_usage_ = false;
    std::map<size_t, size_t> n_characters_;  // of each answer so far
    std::set<size_t> counted_;               // prompts with their tokens in the usage
    common_json last_;
};
