// Folder in which ggml searches for backend libraries.
#pragma once

#include <filesystem>

namespace eagle {

// Returns the folder of the library that contains this function. The program's folder may be Python's, and the working
// directory may contain untrusted files.
std::filesystem::path backend_folder();

}  // namespace eagle
