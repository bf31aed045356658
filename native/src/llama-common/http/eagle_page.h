// Files of the page for clients that do not accept gzip, such as curl. The server holds them compressed.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

// Only the decoder of deflate, which is part of PNG, is used.
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "stb/stb_image.h"
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

// Returns true if the header Accept-Encoding names gzip, without a weight of 0.
inline bool eagle_accepts_gzip(const std::string & header) {
    const size_t at = header.find("gzip");
    if (at == std::string::npos) {
        return false;
    }
    std::string weight = header.substr(at + 4, header.find(',', at) - at - 4);
    weight.erase(std::remove(weight.begin(), weight.end(), ' '), weight.end());
    return weight.compare(0, 4, ";q=0") != 0 || weight.find_first_of("123456789", 4) != std::string::npos;
}

// Returns the place of the deflate stream in a gzip file (RFC 1952, section 2.3).
inline size_t eagle_gzip_stream(const unsigned char * file) {
    enum { HEADER_CRC = 2, EXTRA = 4, NAME = 8, COMMENT = 16 };
    const int flags = file[3];
    size_t at = 10;
    if (flags & EXTRA) {
        at += 2 + (file[at] | file[at + 1] << 8);
    }
    for (int text : {NAME, COMMENT}) {
        while ((flags & text) && file[at++] != 0) {
        }
    }
    return at + (flags & HEADER_CRC ? 2 : 0);
}

// Returns the content of a gzip file that the build has made: one member of less than 2 GiB.
inline std::string eagle_gunzip(const unsigned char * file, size_t size) {
    const unsigned char * tail = file + size - 4;  // the size of the content
    std::string content(tail[0] | tail[1] << 8 | tail[2] << 16 | (size_t) tail[3] << 24, '\0');
    const size_t at = eagle_gzip_stream(file);
    const int n = stbi_zlib_decode_noheader_buffer(content.data(), (int) content.size(), (const char *) file + at,
                                                   (int) (size - at - 8));
    if (n != (int) content.size()) {
        throw std::runtime_error("a file of the page is damaged");
    }
    return content;
}
