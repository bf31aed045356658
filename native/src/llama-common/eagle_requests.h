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
