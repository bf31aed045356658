// Parameters of requests for vectors and scores that llama.cpp's handlers ignore.
#pragma once

#include <cmath>
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
                  "with --embeddings --pooling mean, cls or last");
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

// Answers a request. handler: llama.cpp's.
template <typename Handler, typename Request>
auto eagle_answer(const Handler & handler, const Request & request) {
    const bool is_rank = eagle_ends_with(request.path, "/rerank") || eagle_ends_with(request.path, "/reranking");
    const bool is_vector = eagle_ends_with(request.path, "/embedding") || eagle_ends_with(request.path, "/embeddings");
    const bool has_tokens = eagle_ends_with(request.path, "/tokenize") || eagle_ends_with(request.path, "/detokenize");
    const common_json given = is_rank || is_vector || has_tokens ? common_json::parse(request.body) : common_json();
    for (const char * key : {"content", "documents", "input", "query", "texts", "tokens"}) {
        eagle_require_tokens(eagle_has(given, key) ? given.at(key) : common_json());
    }
    if (!given.is_object() || has_tokens) {
        return handler(request);
    }
    const auto handle = [&](const common_json & changed) {
        Request own = request;
        own.body = changed.dump();
        return handler(own);
    };
    common_json body = common_json::object();
    for (const auto & item : given.items()) {
        if (!item.value().is_null()) {
            body[item.key()] = item.value();
        }
    }
    auto response =
        is_rank ? eagle_rank(body, handle) : eagle_embed(body, eagle_ends_with(request.path, "/v1/embeddings"), handle);
    eagle_length_as_request_error(*response);
    return response;
}
