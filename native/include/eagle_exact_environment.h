// What the environment says of exactness (eagle_exact.h), read in the same way by every backend.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

// LLAMA_EAGLE_EXACT: off or 0, on or 1, strict, as the numbers of eagle_exact_mode; `absent` where it is not set. What
// is none of these is reported on stderr and counts as not set: llama-eagle's Python refuses it before it loads us.
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
