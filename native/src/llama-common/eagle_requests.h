// What llama.cpp's server asks before it serves a request.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

// Messages may name media by URL: a server that fetches them can be sent anywhere.
inline void eagle_require_remote_media() {
    const char * allowed = std::getenv("LLAMA_EAGLE_REMOTE_MEDIA");
    if (!allowed || std::string(allowed) != "1") {
        throw std::invalid_argument("this server fetches no URLs: send the data as data:image/...;base64,...");
    }
}

// Pixels of a picture, which is decoded as a whole.
constexpr int64_t EAGLE_MAX_PIXELS = 100'000'000;

inline bool eagle_is_picture_size(int64_t width, int64_t height) {
    return width * height <= EAGLE_MAX_PIXELS;
}

inline std::string eagle_bad_media() {
    return "an image or sound cannot be read, or has more than " + std::to_string(EAGLE_MAX_PIXELS / 1'000'000) +
           " million pixels: send a sound PNG or JPEG";
}

// Bytes of a request's body; longer ones are answered with 413.
inline size_t eagle_max_body() {
    const char * given = std::getenv("LLAMA_EAGLE_MAX_BODY_MIB");
    const long n = given ? std::atol(given) : 0;
    return (size_t) (n > 0 ? n : 32) << 20;
}

// Takes as long whatever part of a key is right.
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
