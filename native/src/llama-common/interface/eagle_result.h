// The status and the result of a function of eagle_chats.h.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "eagle.h"
#include "log.h"

// Runs the body of a C function, which returns its result.
template <typename Body>
int32_t eagle_answered(const char ** result, const Body & body) {
    static thread_local std::string text;
    int32_t status = EAGLE_OK;
    common_log_set_verbosity_thold(-1);  // the reasons are in the results
    try {
        text = body();
    } catch (const std::bad_alloc &) {
        status = EAGLE_ERR_MEMORY;
        text = "out of memory";
    } catch (const std::exception & error) {
        status = EAGLE_ERR_ARGUMENT;
        text = error.what();
    }
    *result = text.c_str();
    return status;
}
