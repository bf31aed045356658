// Memory of caches, which llama.cpp fills with zeros before it is used.

#include <cstdint>
#include <cstring>

#include "ggml-backend.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

// In llama-kv-cache.cpp every call of ggml_backend_buffer_clear is one of this function (Includes.cmake). Pages that
// are given back to the kernel read as zeros, and occupy memory from the first write on. A server with four slots of
// 8,192 tokens of SmolLM2 would fill 720 MiB before it listens.
extern "C" void eagle_clear_buffer(ggml_backend_buffer_t buffer, uint8_t value) {
#if defined(__linux__)
    if (value == 0 && ggml_backend_buffer_get_type(buffer) == ggml_backend_cpu_buffer_type()) {
        const uintptr_t begin = (uintptr_t) ggml_backend_buffer_get_base(buffer);
        const uintptr_t end = begin + ggml_backend_buffer_get_size(buffer), page = (uintptr_t) sysconf(_SC_PAGESIZE);
        const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
        if (first < last && madvise((void *) first, last - first, MADV_DONTNEED) == 0) {  // fails if they are locked
            memset((void *) begin, 0, first - begin);
            memset((void *) last, 0, end - last);
            return;
        }
    }
#endif
    ggml_backend_buffer_clear(buffer, value);
}
