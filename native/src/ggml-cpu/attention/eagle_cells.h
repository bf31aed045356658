// Keys and values of a cache, as attention reads them.
#pragma once

#include <algorithm>
#include <cstring>

#include "eagle_simd.h"
#include "ggml.h"

#ifdef EAGLE_SIMD

namespace eagle {

constexpr int64_t SEGMENT = 512;  // cache positions that are summed together
constexpr int TILE = 32;          // query rows (heads of a group times tokens) that share one pass over a segment

inline int64_t padded(int64_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

// Keys or values of one head at the positions of a segment.
struct cells {
    ggml_type type;
    const char * data;  // at position 0 of the segment
    size_t stride, row_size;
    int64_t width;

    cells(const ggml_tensor * t, int64_t start, int64_t head, int64_t stream)
        : type(t->type),
          data((const char *) t->data + start * t->nb[1] + head * t->nb[2] + stream * t->nb[3]),
          stride(t->nb[1]),
          row_size(ggml_row_size(t->type, t->ne[0])),
          width(t->ne[0]) {}

    bool are_half_vectors() const { return type == GGML_TYPE_F16 && width % LANES == 0; }

    template <typename Load>
    void load_all(float * out, int64_t first, int64_t n, size_t size, Load load) const {
        for (int64_t i = 0; i < n; ++i) {
            const char * row = data + (first + i) * stride;
            for (int64_t d = 0; d < width; d += LANES) {
                v_storef(out + i * padded(width) + d, load(row + d * size));
            }
        }
    }

    // Converts n rows to floats and pads each with zeros to whole vectors.
    void to_floats(float * out, int64_t first, int64_t n) const {
        const bool whole = width % LANES == 0;
        if (are_half_vectors()) {
            load_all(out, first, n, 2, [](const char * p) { return v_load_f16(p); });
        } else if (type == GGML_TYPE_BF16 && whole) {
            load_all(out, first, n, 2, [](const char * p) { return v_load_bf16(p); });
        } else {
            for (int64_t i = 0; i < n; ++i) {
                float * row = out + i * padded(width);
                const char * from = data + (first + i) * stride;
                if (type == GGML_TYPE_F32) {
                    memcpy(row, from, (size_t) width * sizeof(float));
                } else {
                    ggml_get_type_traits(type)->to_float(from, row, width);
                }
                std::fill(row + width, row + padded(width), 0.0f);
            }
        }
    }
};

// Spreads prefetches of a later block of keys or values over the multiplication steps, because bursts stall when the
// line-fill buffers are full.
struct prefetcher {
    const char * row;
    size_t stride, row_size;
    int rows, steps, due = 0;

    prefetcher(const cells & from, int64_t first, int64_t n, int steps_)
        : row(from.data + first * from.stride),
          stride(from.stride),
          row_size(from.row_size),
          rows((int) n),
          steps(steps_) {}

    void step() {
        for (due += rows; due >= steps; due -= steps, row += stride) {
            for (size_t at = 0; at < row_size; at += 64) {
                _mm_prefetch(row + at, _MM_HINT_T1);
            }
        }
    }
};

}  // namespace eagle

#endif  // EAGLE_SIMD
