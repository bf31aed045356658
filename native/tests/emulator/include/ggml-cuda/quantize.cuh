// Quantization of activations with the same rounding as ggml-cuda's kernel.
#pragma once

#include <algorithm>

#include "ggml-cuda/common.cuh"

inline void quantize_row_q8_1_cuda(const float * x, const int32_t *, void * y, ggml_type, int64_t ne00, int64_t s01,
                                   int64_t s02, int64_t s03, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3,
                                   cudaStream_t) {
    block_q8_1 * out = (block_q8_1 *) y;
    for (int64_t row = 0; row < ne1 * ne2 * ne3; row++) {
        const float * from = x + row % ne1 * s01 + row / ne1 % ne2 * s02 + row / (ne1 * ne2) * s03;
        for (int64_t first = 0; first < ne0; first += QK8_1, out++) {
            float values[QK8_1], most = 0.0f, sum = 0.0f;
            for (int64_t i = 0; i < QK8_1; i++) {
                values[i] = first + i < ne00 ? from[first + i] : 0.0f;
                most = std::max(most, fabsf(values[i]));
                sum += values[i];
            }
            const float d = most / 127.0f;
            for (int64_t i = 0; i < QK8_1; i++) {
                out->qs[i] = most == 0.0f ? 0 : (int8_t) roundf(values[i] / d);
            }
            out->ds = make_half2(d, sum);
        }
    }
}
