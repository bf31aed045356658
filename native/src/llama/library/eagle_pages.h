// Memory of a mapped file.
#pragma once

#include <stddef.h>

// Gives back the whole pages of [data, data + size), part of a file that is mapped read-only. The file's own cache
// keeps them: reading them again is a page fault.
void eagle_release_pages(const void * data, size_t size);
