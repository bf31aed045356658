// End of llama-server when an exception leaves it: with the reason, not as a crash.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>

[[noreturn]] inline void eagle_say_reason_and_end() {
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
    std::set_terminate(eagle_say_reason_and_end);
}
