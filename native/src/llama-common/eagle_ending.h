// Ends llama-server with the reason of an uncaught exception, instead of a crash.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>

[[noreturn]] inline void eagle_exit_with_reason() {
    try {
        if (const auto error = std::current_exception()) {
            std::rethrow_exception(error);
        }
    } catch (const std::invalid_argument & error) {
        std::fprintf(stderr, "error: invalid argument: %s\n", error.what());
        std::fflush(stderr);
        std::_Exit(EXIT_FAILURE);
    } catch (const std::exception & error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        std::fflush(stderr);
        std::_Exit(EXIT_FAILURE);
    } catch (...) {
    }
    std::abort();
}

inline void eagle_end_with_reason() {
    std::set_terminate(eagle_exit_with_reason);
}
