// Ends llama-server with the reason of an uncaught exception, instead of a crash. The reason is the last line: what the
// log's own thread has not written yet comes before it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>

#include "log.h"

[[noreturn]] inline void eagle_exit(const char * kind, const std::exception & error) {
    common_log_flush(common_log_main());
    std::fprintf(stderr, "%s%s\n", kind, error.what());
    std::fflush(stderr);
    std::_Exit(EXIT_FAILURE);
}

[[noreturn]] inline void eagle_exit_with_reason() {
    try {
        if (const auto error = std::current_exception()) {
            std::rethrow_exception(error);
        }
    } catch (const std::invalid_argument & error) {
        eagle_exit("error: invalid argument: ", error);
    } catch (const std::exception & error) {
        eagle_exit("error: ", error);
    } catch (...) {
    }
    std::abort();
}

inline void eagle_end_with_reason() {
    std::set_terminate(eagle_exit_with_reason);
}
