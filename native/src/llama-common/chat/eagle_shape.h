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
#include "eagle_functions.h"
#include "eagle_prompt_probs.h"
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

// Returns the id of a request's completions, which the front may choose: it ends their reasoning by it.
inline std::string eagle_completion_id(const common_json & request, const std::string & usual) {
    const std::string given = eagle_text_at(request, "completion_id");
    return given.empty() ? usual : given;
}

// Returns the vocabulary's tokens of gaps; -1: it has no such token.
template <typename Meta>
common_json eagle_infill_tokens(const Meta & meta) {
    return common_json{{"pre", meta.fim_pre_token},
                       {"suf", meta.fim_sub_token},
                       {"mid", meta.fim_mid_token},
                       {"rep", meta.fim_rep_token},
                       {"sep", meta.fim_sep_token}};
}

// Returns the number of answers to each prompt.
inline int64_t eagle_n_answers(const common_json & request) {
    const char * key = eagle_has(request, "n_cmpl") ? "n_cmpl" : "n";
    return eagle_has(request, key) ? std::max<int64_t>(1, request.at(key).get<int64_t>()) : 1;
}

// A prompt that is repeated before its answers. is_text: false for a prompt of token ids alone.
struct eagle_echo {
    std::string text;
    bool is_text;
};

// Returns the prompts that a request wants before its answers. detokenize(list): the text of tokens.
template <typename Detokenize>
std::vector<eagle_echo> eagle_echoed(const common_json & request, eagle_api api, const Detokenize & detokenize) {
    std::vector<eagle_echo> echoes;
    if (api != eagle_api::completion || !eagle_has(request, "echo") || request.at("echo") == false) {
        return echoes;
    }
    const auto part_of = [&](const common_json & part) {
        return part.is_string() ? part.get<std::string>() : detokenize(common_json::array({part}));
    };
    const auto echo_of = [&](const common_json & prompt) {
        eagle_echo echo = {"", !prompt.is_array() || (!prompt.empty() && prompt.at(size_t(0)).is_string())};
        if (prompt.is_array() && echo.is_text) {  // texts and ids
            for (const auto & part : prompt) {
                echo.text += part_of(part);
            }
        } else {
            echo.text = prompt.is_string()   ? prompt.get<std::string>()
                        : prompt.is_object() ? eagle_text_at(prompt, "prompt_string")
                                             : detokenize(prompt);
        }
        return echo;
    };
    const common_json & prompt = request.at("prompt");
    const auto is_number = [](const common_json & part) { return part.is_number(); };
    if (!prompt.is_array() || prompt.empty() || std::any_of(prompt.begin(), prompt.end(), is_number)) {
        echoes.push_back(echo_of(prompt));
        return echoes;
    }
    for (const auto & each : prompt) {
        echoes.push_back(echo_of(each));
    }
    return echoes;
}

// Returns the number of alternatives that a request wants for each token of its prompt; -1: no probabilities.
inline int32_t eagle_n_prompt_probs(const common_json & request, eagle_api api) {
    if (eagle_has(request, "n_prompt_probs")) {
        return (int32_t) request.at("n_prompt_probs").get<int64_t>();
    }
    const bool has_echo = eagle_has(request, "echo") && request.at("echo") != false;
    const bool has_logprobs = eagle_has(request, "logprobs") && request.at("logprobs") != false;
    return api == eagle_api::completion && has_echo && has_logprobs ? (int32_t) eagle_n_alternatives(request, api) : -1;
}

// Sets what a task needs to know of its request. Every row of a prompt with probabilities is evaluated.
template <typename Params>
void eagle_set_task(Params & params, const common_json & request, eagle_api api) {
    params.eagle_response = request.value("eagle_response", common_json());
    params.eagle_prompt_probs = eagle_n_prompt_probs(request, api);
    params.cache_prompt = params.cache_prompt && params.eagle_prompt_probs < 0;
}

inline size_t eagle_n_characters(const std::string & text) {
    return (size_t) std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// Returns the number of characters that begin in a token, whose text lacks incomplete ones.
inline size_t eagle_n_begun(const common_json & token) {
    size_t n_begun = 0;
    for (const auto & byte : token.at("bytes")) {
        n_begun += (byte.get<int>() & 0xC0) != 0x80;
    }
    return n_begun;
}

// Returns the name of a token in OpenAI's lists: its text, or its bytes if they are no whole characters.
inline std::string eagle_token_name(const common_json & token) {
    std::string text = eagle_text_at(token, "token");
    if (token.at("bytes").size() == text.size()) {
        return text;
    }
    text = "bytes:";
    for (const auto & byte : token.at("bytes")) {
        const char * digits = "0123456789abcdef";
        text += {'\\', 'x', digits[byte.get<int>() / 16], digits[byte.get<int>() % 16]};
    }
    return text;
}

// Shapes the results of one request, whole or chunk by chunk.
class eagle_shape {
  public:
    // echoes: one for each prompt; empty without echo. adds_bos: the first token of a text is not in the text.
    eagle_shape(const common_json & request, eagle_api api, std::vector<eagle_echo> echoes, bool adds_bos)
        : api_(api),
          n_alternatives_(eagle_n_alternatives(request, api)),
          n_answers_(eagle_n_answers(request)),
          echoes_(std::move(echoes)),
          adds_bos_(adds_bos),
          is_stream_(eagle_has(request, "stream") && request.at("stream") == true),
          has_functions_(request.contains(EAGLE_HAS_FUNCTIONS)) {
        has_usage_ = eagle_has(request, "stream_options") && eagle_has(request.at("stream_options"), "include_usage") &&
                     request.at("stream_options").at("include_usage") == true;
    }

    // Shapes a result: an object, or the objects of several chunks. prompt: probabilities that come first, or null.
    void apply(common_json & result, const eagle_prompt_probs * prompt) {
        if (api_ == eagle_api::own) {
            if (prompt) {
                result["prompt_probabilities"] = prompt->to_json(0);
            }
            return;
        }
        if (!result.is_array()) {
            apply_to_object(result, prompt);
            return;
        }
        common_json kept = common_json::array();
        for (auto & chunk : result) {
            apply_to_object(chunk, nullptr);
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
    void apply_to_object(common_json & object, const eagle_prompt_probs * prompt) {
        if (!object.is_object() || !object.contains("choices")) {
            return;
        }
        for (auto & choice : object["choices"]) {
            apply_to_choice(choice, prompt);
        }
        if (is_stream_ && has_usage_ && object.contains("usage")) {
            add_usage(object);
        }
    }

    void apply_to_choice(common_json & choice, const eagle_prompt_probs * prompt) {
        const size_t index = choice.value("index", size_t(0));
        name_cut_calls(choice, arguments_[index]);
        if (has_functions_) {
            eagle_write_function_call(choice);
        }
        const size_t i_prompt = index / (size_t) n_answers_;
        size_t & n_before = n_characters_[index];
        if (i_prompt < echoes_.size() && begun_.insert(index).second) {
            choice["text"] = echoes_[i_prompt].text + eagle_text_at(choice, "text");
            n_before = eagle_n_characters(echoes_[i_prompt].text);
        }
        if (prompt && i_prompt < echoes_.size()) {
            common_json content = prompt->to_json(adds_bos_ && echoes_[i_prompt].is_text ? 1 : 0);
            if (eagle_has(choice, "logprobs")) {
                for (const auto & token : choice.at("logprobs").at("content")) {
                    content.push_back(token);
                }
            }
            choice["logprobs"] = common_json{{"content", content}};
            n_before = 0;
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

    // Gives an answer with a call that is not whole the reason "stop": a stop text has cut its arguments, or the model
    // has left the call's format. arguments: of each call so far.
    static void name_cut_calls(common_json & choice, std::map<size_t, std::string> & arguments) {
        for (const char * key : {"message", "delta"}) {
            if (!eagle_has(choice, key) || !eagle_has(choice.at(key), "tool_calls")) {
                continue;
            }
            size_t i = 0;
            for (const auto & call : choice.at(key).at("tool_calls")) {
                const std::string more = eagle_text_at(call.value("function", common_json()), "arguments");
                arguments[call.value("index", i++)] += more;
            }
        }
        const auto is_cut = [](const auto & call) { return !eagle_is_json(call.second); };
        if (eagle_text_at(choice, "finish_reason") == "tool_calls" &&
            std::any_of(arguments.begin(), arguments.end(), is_cut)) {
            choice["finish_reason"] = "stop";
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
            const std::string text = eagle_token_name(token);
            logprobs["tokens"].push_back(text);
            logprobs["text_offset"].push_back(n_before);
            n_before += eagle_n_begun(token);
            if (token.contains("logprob") && token.at("logprob").is_null()) {  // the first of a prompt
                logprobs["token_logprobs"].push_back(nullptr);
                logprobs["top_logprobs"].push_back(nullptr);
                continue;
            }
            common_json alternatives = common_json::object();
            for (const auto & other : token.at(token.contains("top_probs") ? "top_probs" : "top_logprobs")) {
                const std::string name = eagle_token_name(other);
                if (!alternatives.contains(name)) {  // the first of several tokens with one text is the likeliest
                    alternatives[name] = value(other);
                }
            }
            alternatives[text] = value(token);
            logprobs["token_logprobs"].push_back(value(token));
            logprobs["top_logprobs"].push_back(alternatives);
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
            last_["usage"]["completion_tokens_details"] = common_json{{"reasoning_tokens", 0}};
        }
        eagle_add_usage(last_, usage, counted_.insert(index / (size_t) n_answers_).second);
        if (chunk.contains("timings")) {
            last_["timings"] = chunk.at("timings");
        }
    }

    eagle_api api_;
    int64_t n_alternatives_;
    int64_t n_answers_;
    std::vector<eagle_echo> echoes_;
    bool adds_bos_;
    bool is_stream_;
    bool has_functions_;
    bool has_usage_ = false;
    std::map<size_t, size_t> n_characters_;                      // of each answer so far
    std::map<size_t, std::map<size_t, std::string>> arguments_;  // of the calls of each answer so far
    std::set<size_t> begun_;                                     // answers with their prompt
    std::set<size_t> counted_;                                   // prompts with their tokens in the usage
    common_json last_;
};
