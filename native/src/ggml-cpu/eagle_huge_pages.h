// Memory pages of 2 MiB for weights.
#pragma once

#include <stddef.h>

// Requests them for memory that will hold weights: prefetches cross page boundaries constantly, and in a virtual
// machine each small page needs two table walks.
void eagle_request_huge_pages(void * data, size_t size);
