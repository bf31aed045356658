// llama.cpp's logger is never flushed when a tool ends, so its last lines, which hold the figures, get lost at times.
#include "log.h"

static const struct AtExit {
    ~AtExit() { common_log_flush(common_log_main()); }
} at_exit;
