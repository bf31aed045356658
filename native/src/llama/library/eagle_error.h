// Exceptions of our C++ code, and their conversion to status codes at the C interface.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "eagle.h"

namespace eagle {

class Error : public std::runtime_error {
  public:
    Error(eagle_status status, const std::string & message) : std::runtime_error(message), status(status) {}
    const eagle_status status;
};

// Stores `message` as the thread's last error and returns `status`.
int32_t fail(eagle_status status, const std::string & message);

// printf into a std::string.
#ifdef __MINGW32__  // its `printf` format is Microsoft's
std::string format(const char * pattern, ...) __attribute__((format(gnu_printf, 1, 2)));
#else
std::string format(const char * pattern, ...) __attribute__((format(printf, 1, 2)));
#endif

// Runs the body of a C function and returns its status.
template <typename Body>
int32_t guarded(const char * call, Body && body) {
    try {
        body();
        return EAGLE_OK;
    } catch (const Error & error) {
        return fail(error.status, error.what());
    } catch (const std::bad_alloc &) {
        return fail(EAGLE_ERR_MEMORY, std::string(call) + ": out of memory");
    } catch (const std::exception & error) {
        return fail(EAGLE_ERR_INTERNAL, std::string(call) + ": " + error.what());
    }
}

}  // namespace eagle
