// Failures that no request causes: an uncaught exception ends llama-server with its reason instead of a crash, and an
// RPC server that is gone is named.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

#include "ggml-backend.h"
#include "log.h"

// The reason is the last line: what the log's own thread has not written yet is written before it.

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

// Returns an RPC server that has held a part of the model and is gone; null if there is none. ggml-rpc may be loaded at
// run time or not at all, so its function is looked up by name.
inline const char * eagle_lost_rpc_server() {
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
    auto * any_lost = reg ? (const char * (*)()) ggml_backend_reg_get_proc_address(reg, "eagle_rpc_any_lost") : nullptr;
    return any_lost ? any_lost() : nullptr;
}

inline std::string eagle_about_lost(const std::string & server) {
    return "the RPC server " + server + " is gone: start it again, then this server";
}

// Returns the reason why this server can answer no request; empty if it can.
inline std::string eagle_unusable() {
    const char * server = eagle_lost_rpc_server();
    return server ? eagle_about_lost(server) : std::string();
}

// Returns the message for a decode that failed.
inline std::string eagle_compute_error() {
    const char * server = eagle_lost_rpc_server();
    return server ? eagle_about_lost(server) : "Compute error.";
}
