// Release of memory that a mapped file occupies.
#pragma once

#include <stddef.h>

// Releases the whole pages of [data, data + size), part of a file that is mapped read-only. They stay in the page
// cache, so reading them again costs a page fault.
void eagle_release_pages(const void * data, size_t size);
