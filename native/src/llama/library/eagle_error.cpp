#include "eagle_error.h"

#include <cstdarg>
#include <cstdio>

namespace {
thread_local std::string last_error;
}

namespace eagle {

int32_t fail(eagle_status status, const std::string & message) {
    last_error = message;
    return status;
}

std::string format(const char * pattern, ...) {
    va_list args;
    va_start(args, pattern);
    char text[1024];
    vsnprintf(text, sizeof text, pattern, args);
    va_end(args);
    return text;
}

}  // namespace eagle

const char * eagle_last_error(void) {
    return last_error.c_str();
}
