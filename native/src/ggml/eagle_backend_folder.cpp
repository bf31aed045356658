#include "eagle_backend_folder.h"

#include <iterator>
#include <system_error>

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace fs = std::filesystem;

namespace eagle {

#ifdef _WIN32

fs::path backend_folder() {
    constexpr DWORD by_address = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    HMODULE module = nullptr;
    wchar_t path[32768];  // maximum path length
    if (!GetModuleHandleExW(by_address, reinterpret_cast<LPCWSTR>(&backend_folder), &module)) {
        return {};
    }
    const DWORD n = GetModuleFileNameW(module, path, DWORD(std::size(path)));
    return n > 0 && n < std::size(path) ? fs::path(path).parent_path() : fs::path();
}

#else

fs::path backend_folder() {
    Dl_info info{};
    if (!dladdr(reinterpret_cast<const void *>(&backend_folder), &info) || !info.dli_fname) {
        return {};
    }
    std::error_code error;
    const fs::path path = fs::absolute(info.dli_fname, error);
    return error ? fs::path() : path.parent_path();
}

#endif

}  // namespace eagle
