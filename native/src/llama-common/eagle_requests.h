// Checks of requests to llama.cpp's server: media and size.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

// Throws unless the server may fetch URLs: clients could use it to reach any address.
inline void eagle_require_remote_media() {
    const char * allowed = std::getenv("LLAMA_EAGLE_REMOTE_MEDIA");
    if (!allowed || std::string(allowed) != "1") {
        throw std::invalid_argument("this server fetches no URLs: send the data as data:image/...;base64,...");
    }
}

// Maximum number of pixels of a picture, because decoding needs memory for all of them.
constexpr int64_t EAGLE_MAX_PIXELS = 100'000'000;

inline bool eagle_is_picture_size(int64_t width, int64_t height) {
    return width * height <= EAGLE_MAX_PIXELS;
}
