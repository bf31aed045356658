// Parameters of requests for vectors, scores, tokens and gaps that llama.cpp's handlers ignore or do not name.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base64.hpp"
#include "eagle_chat.h"
#include "eagle_loaded.h"
#include "eagle_parameters.h"
#include "eagle_tokens.h"
#include "json.h"

inline bool eagle_ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Returns the first `n` values of a vector, with length 1 if the vector has it.
inline std::vector<float> eagle_shortened(const std::vector<float> & values, size_t n) {
    const auto length = [](const std::vector<float> & of) {
        double sum = 0.0;
        for (const float value : of) {
            sum += (double) value * value;
        }
        return std::sqrt(sum);
    };
    std::vector<float> kept(values.begin(), values.begin() + n);
    const double size = length(kept);
    const bool is_scaled = std::fabs(length(values) - 1.0) < 1e-3 && size > 0.0;
    for (float & value : kept) {
        value = is_scaled ? (float) (value / size) : value;
    }
    return kept;
}

// Shortens the vectors of an answer to `n` values each.
inline void eagle_shorten_vectors(common_json & answer, size_t n, bool is_base64) {
    for (auto & entry : answer.at("data")) {
        const auto values = entry.at("embedding").get<std::vector<float>>();
        eagle_require(0 < n && n <= values.size(), "'dimensions' is a whole number from 1 to " +
                                                       std::to_string(values.size()) + ", this model's size");
        const std::vector<float> kept = eagle_shortened(values, n);
        entry["embedding"] = kept;
        if (is_base64) {
            entry["embedding"] = base64::encode((const char *) kept.data(), kept.size() * sizeof(float));
        }
    }
}

// Answers a request for embeddings. handle(body): llama.cpp's handler.
template <typename Handle>
auto eagle_embed(common_json body, bool is_openai, const Handle & handle) {
    // llama.cpp would read as many values as an embedding has, from a buffer that holds only the scores.
    eagle_require(!eagle_has_scores(),
                  "this model gives scores and no embeddings: use /v1/rerank, or start the server "
                  "with --embeddings -- --pooling mean, cls or last");
    eagle_require(!eagle_has(body, "encoding_format") || body.at("encoding_format").is_string(),
                  "'encoding_format' is no text");
    const bool is_base64 = eagle_text_at(body, "encoding_format") == "base64";
    if (!is_openai || !body.contains("input")) {
        eagle_refuse_keys(body, {"dimensions"});
        eagle_require(!is_base64, "this API has no base64: leave out 'encoding_format', or use /v1/embeddings");
    }
    if (!body.contains("dimensions")) {
        return handle(body);
    }
    eagle_require(body.at("dimensions").is_number_integer(), "'dimensions' is no whole number");
    const int64_t n = body.at("dimensions").get<int64_t>();
    body["encoding_format"] = "float";
    auto response = handle(body);
    if (response->status == 200) {
        common_json answer = common_json::parse(response->data);
        eagle_shorten_vectors(answer, n < 1 ? 0 : (size_t) n, is_base64);
        response->data = answer.dump();
    }
    return response;
}

// Answers a request for scores. Documents may be objects with a text.
template <typename Handle>
auto eagle_rank(common_json body, const Handle & handle) {
    eagle_refuse_keys(body, {"rank_fields"});
    eagle_require(
        !body.contains("top_n") || (body.at("top_n").is_number_integer() && body.at("top_n").get<int64_t>() > 0),
        "'top_n' is a whole number, at least 1");
    common_json & documents = body[body.contains("texts") ? "texts" : "documents"];
    for (size_t i = 0; documents.is_array() && i < documents.size(); i++) {
        documents[i] = documents.at(i).is_object() ? documents.at(i).value("text", common_json()) : documents.at(i);
    }
    const bool returns_documents = body.contains("documents") && body.value("return_documents", false);
    const common_json given = documents;
    auto response = handle(body);
    if (response->status == 200 && returns_documents) {
        common_json answer = common_json::parse(response->data);
        for (auto & result : answer.at("results")) {
            result["document"] = common_json{{"text", given.at(result.at("index").get<size_t>())}};
        }
        response->data = answer.dump();
    }
    return response;
}

// Makes a text beyond the batch an error of the request: clients repeat a request that the server fails.
template <typename Response>
void eagle_length_as_request_error(Response & response) {
    const bool is_error = response.status == 500;
    common_json answer = is_error ? common_json::parse_no_throw(response.data) : common_json();
    if (!eagle_has(answer, "error")) {
        return;
    }
    common_json & error = answer.at("error");
    const std::string message = eagle_text_at(error, "message");
    const size_t end = message.find(" is too large to process");
    if (end != std::string::npos) {
        const size_t size = message.rfind(' ') + 1;
        response.status = 400;
        error["code"] = 400;
        error["type"] = "exceed_context_size_error";
        error["message"] = message.substr(0, end) +
                           " is too long: shorten it, or start the server with a larger --ubatch-size than " +
                           message.substr(size, message.size() - size - 1);
        response.data = answer.dump();
    }
}

// Throws for wrong types in a request for tokens or for their text: llama.cpp uses defaults, or names no field.
inline void eagle_require_token_fields(const common_json & body) {
    for (const char * key : {"add_special", "parse_special", "with_pieces"}) {
        eagle_require(!eagle_has(body, key) || body.at(key).is_boolean(),
                      "'" + std::string(key) + "' is not true or false");
    }
    for (const std::string key : {"content", "tokens"}) {
        const bool takes_text = key == "content";
        const common_json value = eagle_has(body, key) ? body.at(key) : common_json::array();
        if (takes_text && value.is_string()) {
            continue;
        }
        eagle_require(value.is_array(), "'" + key + "' is " + (takes_text ? "neither a text nor a list" : "no list"));
        for (const auto & part : value) {
            eagle_require(
                part.is_number_integer() || (takes_text && part.is_string()),
                "'" + key + "' has a part that is " + (takes_text ? "neither a text nor a token id" : "no token id"));
        }
    }
}

// Throws for wrong types in a request for the text of a gap, as above.
inline void eagle_require_infill_fields(const common_json & body) {
    for (const std::string key : {"input_prefix", "input_suffix", "prompt"}) {
        eagle_require(eagle_has(body, key) || key == "prompt", "'" + key + "' is required");
        eagle_require(!eagle_has(body, key) || body.at(key).is_string(), "'" + key + "' is no text");
    }
    const common_json extra = eagle_has(body, "input_extra") ? body.at("input_extra") : common_json::array();
    eagle_require(extra.is_array(), "'input_extra' is no list");
    for (const auto & file : extra) {
        eagle_require(eagle_has(file, "text") && file.at("text").is_string(),
                      "'input_extra' has a part whose 'text' is no text");
        eagle_require(!eagle_has(file, "filename") || file.at("filename").is_string(),
                      "'input_extra' has a part whose 'filename' is no text");
    }
}

// Checks a request for the text of a gap, and removes what has no value from it. The request is changed in place: a
// stream reads it until its end. Requests are no constants, but handlers take them as such.
template <typename Request>
void eagle_read_infill(const Request & request, const common_json & given) {
    eagle_require_infill_fields(given);
    common_json body = eagle_without_nulls(given);
    if (body.contains("input_extra")) {
        for (auto & file : body["input_extra"]) {
            file = eagle_without_nulls(file);
        }
    }
    const_cast<Request &>(request).body = body.dump();
}

// Returns the response to any request if a server that sleeps would read other files than it started with; else null.
template <typename ResponsePtr>
ResponsePtr eagle_refusal_of_files() {
    const std::string reason = eagle_model_files::is_read_again() ? eagle_model_files::change() : "";
    if (reason.empty()) {
        return nullptr;
    }
    auto response = std::make_unique<typename ResponsePtr::element_type>();
    response->status = 503;
    const common_json error = {{"code", 503}, {"type", "unavailable_error"}, {"message", reason}};
    response->data = common_json{{"error", error}}.dump();
    return response;
}

// Answers a request. handler: llama.cpp's.
template <typename Handler, typename Request>
auto eagle_answer(const Handler & handler, const Request & request) {
    if (auto refusal = eagle_refusal_of_files<decltype(handler(request))>()) {
        return refusal;
    }
    const bool is_rank = eagle_ends_with(request.path, "/rerank") || eagle_ends_with(request.path, "/reranking");
    const bool is_vector = eagle_ends_with(request.path, "/embedding") || eagle_ends_with(request.path, "/embeddings");
    const bool has_tokens = eagle_ends_with(request.path, "/tokenize") || eagle_ends_with(request.path, "/detokenize");
    const bool is_infill = eagle_ends_with(request.path, "/infill");
    const bool is_read = is_rank || is_vector || has_tokens || is_infill;
    const common_json given = is_read ? common_json::parse(request.body) : common_json();
    for (const char * key : {"content", "documents", "input", "query", "texts", "tokens"}) {
        eagle_require_tokens(eagle_has(given, key) ? given.at(key) : common_json());
    }
    eagle_require(given.is_object() || !(has_tokens || is_infill), "the body is no JSON object");
    if (is_infill) {
        eagle_read_infill(request, given);
    }
    if (!given.is_object() || is_infill) {
        return handler(request);
    }
    const auto handle = [&](const common_json & changed) {
        Request own = request;
        own.body = changed.dump();
        return handler(own);
    };
    const common_json body = eagle_without_nulls(given);
    if (has_tokens) {
        eagle_require_token_fields(body);
        return handle(body);
    }
    auto response =
        is_rank ? eagle_rank(body, handle) : eagle_embed(body, eagle_ends_with(request.path, "/v1/embeddings"), handle);
    eagle_length_as_request_error(*response);
    return response;
}
