// Access control of llama.cpp's server: origins, keys, and files that must not have changed.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#include "eagle_model_files.h"
#include "json.h"

// Returns true if the host of an origin or address ("https://localhost:8000", "[::1]:8000") is this machine.
inline bool eagle_is_local_name(std::string name) {
    const size_t scheme = name.find("://");
    name = scheme == std::string::npos ? name : name.substr(scheme + 3);
    name = name.substr(0, name[0] == '[' ? name.find(']') + 1 : name.find(':'));
    const std::string suffix = ".localhost";
    const bool is_address = name.find_first_not_of("0123456789.") == std::string::npos;
    return name == "localhost" || name == "[::1]" || (is_address && name.compare(0, 4, "127.") == 0) ||
           (name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0);
}

// Returns true if a request is from this machine and not from another site's page in its browser. Such a page has a
// foreign origin, or a foreign host name that resolves to this machine. Programs send no origin, and browser extensions
// an origin of another scheme.
inline bool eagle_is_of_this_machine(const std::string & host, const std::string & origin) {
    const bool is_page = origin == "null" || origin.compare(0, 4, "http") == 0;
    return (host.empty() || eagle_is_local_name(host)) && (!is_page || eagle_is_local_name(origin));
}

// Returns true unless a server that sleeps would read other files than it has started with; then writes the response.
template <typename Response>
bool eagle_can_answer(Response & response) {
    const std::string reason = eagle_model_files::is_read_again() ? eagle_model_files::change() : "";
    if (reason.empty()) {
        return true;
    }
    response.status = 503;
    const common_json error = {{"code", 503}, {"type", "unavailable_error"}, {"message", reason}};
    response.set_content(common_json{{"error", error}}.dump(), "application/json; charset=utf-8");
    return false;
}

// Returns true if a request without a key is allowed; otherwise writes the response.
template <typename Response>
bool eagle_allows(const std::string & host, const std::string & origin, Response & response) {
    const char * local = std::getenv("LLAMA_EAGLE_LOCAL");
    if (!local || std::string(local) != "1" || eagle_is_of_this_machine(host, origin)) {
        return true;
    }
    response.status = 403;
    response.set_content(
        "{\"error\":{\"code\":403,\"type\":\"permission_error\",\"message\":\"a page of another site: "
        "start this server with a key and -- --cors-origins for it\"}}",
        "application/json; charset=utf-8");
    return false;
}

// Compares in constant time, so that the duration does not reveal which part of a key is correct.
inline bool eagle_is_key(const std::vector<std::string> & keys, const std::string & given) {
    bool found = false;
    for (const std::string & key : keys) {
        unsigned char differs = key.size() != given.size();
        for (size_t i = 0; i < given.size(); i++) {
            differs |= (unsigned char) (given[i] ^ key[key.empty() ? 0 : i % key.size()]);
        }
        found |= !differs && !key.empty();
    }
    return found;
}

// Returns the key in the header Authorization. The name of the scheme has no case.
inline std::string eagle_bearer(const std::string & header) {
    const std::string scheme = "bearer ";
    for (size_t i = 0; i < scheme.size(); i++) {
        if (i >= header.size() || std::tolower((unsigned char) header[i]) != scheme[i]) {
            return header;
        }
    }
    return header.substr(std::min(header.find_first_not_of(' ', scheme.size()), header.size()));
}

// Returns true if a request has a key, in the header of OpenAI's clients or in that of Anthropic's. Some clients send
// both, one of them for another server.
template <typename Request>
bool eagle_has_key(const std::vector<std::string> & keys, const Request & request) {
    return eagle_is_key(keys, eagle_bearer(request.get_header_value("Authorization"))) ||
           eagle_is_key(keys, eagle_bearer(request.get_header_value("X-Api-Key")));
}
