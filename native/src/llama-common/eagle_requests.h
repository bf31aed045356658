// Checks of requests to llama.cpp's server: media, size, origin and key.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

// Throws unless the server may fetch URLs: clients could use it to reach any address.
inline void eagle_require_remote_media() {
    const char * allowed = std::getenv("LLAMA_EAGLE_REMOTE_MEDIA");
    if (!allowed || std::string(allowed) != "1") {
        throw std::invalid_argument("this server fetches no URLs: send the data as data:image/...;base64,...");
    }
}

// Returns the sampler's seed for a request's seed of up to 64 bits, which OpenAI's API allows. -1 is a random seed.
template <typename Json>
uint32_t eagle_seed(const Json & given) {
    const int64_t seed = given.template get<int64_t>();
    if (-1 <= seed && seed <= UINT32_MAX) {
        return (uint32_t) seed;
    }
    const uint32_t hash = (uint32_t) ((uint64_t) seed * 0x9E3779B97F4A7C15 >> 32);  // Fibonacci hashing
    return hash == UINT32_MAX ? 0 : hash;
}

// Maximum number of pixels of a picture, because decoding needs memory for all of them.
constexpr int64_t EAGLE_MAX_PIXELS = 100'000'000;

inline bool eagle_is_picture_size(int64_t width, int64_t height) {
    return width * height <= EAGLE_MAX_PIXELS;
}

inline std::string eagle_bad_media() {
    return "an image or sound cannot be read, or has more than " + std::to_string(EAGLE_MAX_PIXELS / 1'000'000) +
           " million pixels: send a sound PNG or JPEG";
}

inline std::string eagle_no_media(const std::string & what) {
    return "this server reads no " + what + ": start it with --mmproj and an encoder that does";
}

// Returns the maximum size of a request's body in bytes; longer ones get status 413.
inline size_t eagle_max_body() {
    const char * given = std::getenv("LLAMA_EAGLE_MAX_BODY_MIB");
    const long n = given ? std::atol(given) : 0;
    return (size_t) (n > 0 ? n : 32) << 20;
}

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
        "start this server with a key for it\"}}",
        "application/json; charset=utf-8");
    return false;
}

// Compares in constant time, so that the duration does not reveal which part of a key is correct.
inline bool eagle_has_key(const std::vector<std::string> & keys, const std::string & given) {
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
