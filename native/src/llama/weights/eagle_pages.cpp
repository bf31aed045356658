#include "eagle_pages.h"

#include <stdint.h>

#if defined(_WIN32)
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

void eagle_release_pages(const void * data, size_t size) {
#if defined(_WIN32)
    VirtualUnlock((void *) data, size);  // removes pages that are not locked from the working set
#else
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t) data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t) data + size) / page * page;
    if (begin < end) {
        madvise((void *) begin, end - begin, MADV_DONTNEED);
    }
#endif
}
