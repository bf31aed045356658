// The contents of a file in one read: the checkpoints of a slot may have gigabytes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

// Returns no bytes for a file that cannot be read completely.
inline std::vector<char> eagle_file_bytes(const std::string & path) {
    std::error_code failed;
    const auto size = std::filesystem::file_size(path, failed);
    std::vector<char> found(failed ? 0 : (size_t) size);
    std::ifstream file(path, std::ios::binary);
    return file.read(found.data(), (std::streamsize) found.size()) ? found : std::vector<char>();
}
