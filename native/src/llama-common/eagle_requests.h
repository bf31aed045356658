// Checks of media in requests.
#pragma once

#include <cstdint>

// Maximum number of pixels of a picture, because decoding needs memory for all of them.
constexpr int64_t EAGLE_MAX_PIXELS = 100'000'000;

inline bool eagle_is_picture_size(int64_t width, int64_t height) {
    return width * height <= EAGLE_MAX_PIXELS;
}
