// The list of models, for OpenAI's and Anthropic's clients, and a single model.
#pragma once

#include <ctime>
#include <string>

#include "eagle_errors.h"
#include "eagle_vectors.h"
#include "json.h"

// Adds the fields of Anthropic's models.
inline void eagle_describe_model(common_json & model) {
    const std::time_t created = (std::time_t) model.value("created", (int64_t) 0);
    std::tm parts = {};  // std::gmtime returns the same object to all threads
#ifdef _WIN32
    gmtime_s(&parts, &created);
#else
    gmtime_r(&created, &parts);
#endif
    char text[32] = "";
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
    model["type"] = "model";
    model["display_name"] = model.value("id", "");
    model["created_at"] = text;
}

inline common_json eagle_models_of(const std::string & body) {
    common_json list = common_json::parse(body);
    common_json models = list.at("data");
    for (size_t i = 0; i < models.size(); i++) {
        eagle_describe_model(models.at(i));
    }
    list["data"] = models;
    list["has_more"] = false;
    list["first_id"] = models.empty() ? common_json(nullptr) : models.front().at("id");
    list["last_id"] = models.empty() ? common_json(nullptr) : models.back().at("id");
    return list;
}

inline bool eagle_is_model(const common_json & model, const std::string & id) {
    if (model.at("id") == id) {
        return true;
    }
    for (const auto & alias : model.value("aliases", common_json::array())) {
        if (alias == id) {
            return true;
        }
    }
    return false;
}

// Returns a handler of GET /v1/models. list: llama.cpp's handler.
template <typename Handler>
Handler eagle_list_models(const Handler & list) {
    return [list](const auto & request) {
        auto response = list(request);
        if (response->status == 200) {
            response->data = eagle_models_of(response->data).dump();
        }
        return response;
    };
}

// Returns a handler of GET /v1/models/ID. list: llama.cpp's handler of all models.
template <typename Handler>
Handler eagle_find_model(const Handler & list) {
    return [list](const auto & request) {
        auto response = list(request);
        const std::string prefix = "/v1/models/";
        const std::string id = request.path.substr(request.path.find(prefix) + prefix.size());
        if (response->status != 200) {
            return response;
        }
        const common_json models = eagle_models_of(response->data).at("data");
        std::string names;
        for (const auto & model : models) {
            if (eagle_is_model(model, id)) {
                response->data = model.dump();
                return response;
            }
            names += (names.empty() ? "" : ", ") + model.at("id").dump();
        }
        common_json error = {{"code", "model_not_found"}, {"type", "not_found_error"}, {"param", "model"}};
        error["message"] = "the model '" + id + "' is none of this server's: " + names;
        response->status = 404;
        response->data = common_json{{"error", error}}.dump();
        return response;
    };
}
