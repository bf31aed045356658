// The exact mode of the environment (eagle_exact.h), which every backend reads.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

// Returns the eagle_exact_mode of LLAMA_EAGLE_EXACT (off or 0, on or 1, strict), or `absent` if it is not set. Another
// value is reported on stderr and ignored; the Python bindings refuse it before they load this library.
inline int eagle_exact_from_environment(int absent) {
    const char * value = getenv("LLAMA_EAGLE_EXACT");
    if (value == nullptr || *value == '\0') {
        return absent;
    }
    const char * const names[][2] = {{"off", "0"}, {"on", "1"}, {"strict", "strict"}};
    for (int mode = 0; mode < 3; mode++) {
        if (strcmp(value, names[mode][0]) == 0 || strcmp(value, names[mode][1]) == 0) {
            return mode;
        }
    }
    fprintf(stderr, "LLAMA_EAGLE_EXACT=%s is not known: use off, on or strict\n", value);
    return absent;
}
