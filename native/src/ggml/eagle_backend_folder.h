// Where backends that are libraries of their own are looked for.
#pragma once

#include <filesystem>

namespace eagle {

// The folder of the library that this is part of. Not the program's, which may be Python's, and not the working
// directory, where a stranger's file may lie.
std::filesystem::path backend_folder();

}  // namespace eagle
