// Monotonic time in nanoseconds.
#pragma once

#include <stdint.h>

#include <chrono>

namespace eagle {

inline int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace eagle
