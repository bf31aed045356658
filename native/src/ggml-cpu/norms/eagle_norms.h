// What RMS and L2 norms sum: ggml adds squares one after the other, four cycles each.
#pragma once

#include <stdint.h>

// The sum of n squares: each rounded to a float, added as doubles, as ggml does.
double eagle_sum_of_squares(int64_t n, const float * x);
