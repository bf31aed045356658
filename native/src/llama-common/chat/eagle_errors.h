// Bodies of error responses in the form of each API, with the words that its clients look for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "eagle_tokens.h"
#include "json.h"

// Returns whether an error of llama.cpp is about a prompt that is longer than the context.
inline bool eagle_is_too_long(const common_json & error) {
    return error.value("type", "") == "exceed_context_size_error" && error.contains("n_ctx");
}

// Returns the remedy for a prompt that is longer than a context of n_ctx tokens, by the limit that it met.
inline std::string eagle_longer_prompt(int64_t n_ctx) {
    const int64_t n_trained = eagle_trained_context();
    return n_trained > 0 && n_trained <= n_ctx
               ? "shorten the prompt: the model was trained with " + std::to_string(n_trained) + " tokens"
               : "shorten the prompt, or use a larger -c (with a smaller --parallel if memory is short)";
}

// Returns OpenAI's code of an error of llama.cpp; null if there is none.
inline common_json eagle_error_code(const common_json & error) {
    const std::string type = error.value("type", "");
    return type == "exceed_context_size_error" ? common_json("context_length_exceeded")
           : type == "server_error"            ? common_json("server_error")
                                               : common_json(nullptr);
}

// Returns Anthropic's type of an error.
inline std::string eagle_messages_error_type(const std::string & type, int status) {
    if (type == "authentication_error" || type == "permission_error" || type == "not_found_error") {
        return type;
    }
    if (status == 413) {
        return "request_too_large";
    }
    return status == 503 ? "overloaded_error" : status >= 500 ? "api_error" : "invalid_request_error";
}

// Returns the body of an error in Anthropic's form.
inline common_json eagle_messages_error(const common_json & error, int status) {
    std::string message = error.value("message", "");
    if (eagle_is_too_long(error)) {
        const int64_t n_ctx = error.at("n_ctx").get<int64_t>();
        message = "prompt is too long: " + std::to_string(error.at("n_prompt_tokens").get<int64_t>()) + " tokens > " +
                  std::to_string(n_ctx) + " maximum; " + eagle_longer_prompt(n_ctx);
    }
    common_json detail = {{"type", eagle_messages_error_type(error.value("type", ""), status)}, {"message", message}};
    return common_json{{"type", "error"}, {"error", detail}};
}

// Advice for Codex, which lets OpenAI's server compact conversations.
constexpr const char * EAGLE_COMPACTION =
    "give this provider another name than OpenAI, then Codex compacts conversations by itself";

// Returns the message for a path that the server does not have.
inline std::string eagle_no_path(const std::string & method, const std::string & path) {
    std::string name = "this server has no " + method + " " + path.substr(0, 100);
    std::replace_if(name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');  // may not be UTF-8
    const size_t responses = path.find("/responses/");
    if (path.compare(0, 5, "/api/") == 0) {
        return name + ": it is not Ollama. Choose an OpenAI-compatible provider with the base URL http://HOST:PORT/v1";
    }
    if (responses != std::string::npos && path.compare(responses, std::string::npos, "/responses/compact") == 0) {
        return name + ": " + EAGLE_COMPACTION;
    }
    return name + (responses == std::string::npos ? ": OpenAI's APIs are below /v1, Anthropic's is /v1/messages"
                                                  : ": it keeps no responses. Send the conversation again");
}

// Returns a message of llama.cpp without what clients cannot use: the name of its JSON library, and the place in the
// source of a chat template.
inline std::string eagle_clear_message(std::string message) {
    const size_t begin = message.find("[json.exception.");
    const size_t end = begin == std::string::npos ? begin : message.find("] ", begin);
    if (end != std::string::npos) {
        message.erase(begin, end + 2 - begin);
    }
    const size_t place = message.find("\n------------\nWhile executing");
    const std::string label = "\nError: ";
    const size_t reason = message.rfind(label);
    if (place == std::string::npos || reason == std::string::npos) {
        return message;
    }
    message = message.substr(reason + label.size());
    const std::string raised = "Jinja Exception: ";
    return "the chat template " + (message.compare(0, raised.size(), raised) == 0
                                       ? "refuses this request: " + message.substr(raised.size())
                                       : "failed: " + message);
}

// Returns the body of an error response in the form of the API at `path`. Other bodies remain. is_anthropic: true if
// the request has a header of Anthropic's clients, which also list models.
inline std::string eagle_error_body(const std::string & method, const std::string & path, bool is_anthropic, int status,
                                    const std::string & body) {
    common_json answer = common_json::parse_no_throw(body);
    if (answer.is_discarded() || !answer.is_object() || !answer.contains("error") || !answer.at("error").is_object()) {
        return body;
    }
    const bool is_openai = path.find("/v1/") != std::string::npos ||
                           path.find("/chat/completions") != std::string::npos ||
                           path.find("/responses") != std::string::npos;
    common_json & error = answer.at("error");
    const std::string message = error.value("message", "");
    const bool has_no_path = status == 404 && message == "File Not Found";
    error["message"] = has_no_path ? eagle_no_path(method, path) : eagle_clear_message(message);
    if (eagle_is_too_long(error)) {  // llama.cpp's advice is the same for both limits
        error["message"] =
            message.substr(0, message.rfind(')') + 1) + "; " + eagle_longer_prompt(error.at("n_ctx").get<int64_t>());
    }
    if (is_anthropic || path.find("/v1/messages") != std::string::npos) {
        return eagle_messages_error(error, status).dump();
    }
    if (is_openai && error.value("type", "") == "exceed_context_size_error") {
        error["code"] = eagle_error_code(error);
        error["param"] = nullptr;
    }
    return answer.dump();
}

// Gives an error response the form of the API of its request.
template <typename Request, typename Response>
void eagle_write_error(const Request & request, Response & response) {
    response.body = eagle_error_body(request.method, request.path, request.has_header("anthropic-version"),
                                     response.status, response.body);
}
