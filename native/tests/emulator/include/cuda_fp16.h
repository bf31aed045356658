// The parts of CUDA's half-precision API that our kernels use.
#pragma once

#include <cmath>
#include <cstdint>

#include "ggml.h"

struct float2 {
    float x, y;
};

struct int2 {
    int x, y;
};

inline float2 make_float2(float x, float y) {
    return {x, y};
}

struct half {
    ggml_fp16_t bits;
    operator float() const { return ggml_fp16_to_fp32(bits); }
};

struct half2 {
    half x, y;
};

inline float __half2float(half x) {
    return ggml_fp16_to_fp32(x.bits);
}

inline half __float2half(float x) {
    return {ggml_fp32_to_fp16(x)};
}

inline float2 __half22float2(half2 x) {
    return {__half2float(x.x), __half2float(x.y)};
}

inline half __low2half(half2 x) {
    return x.x;
}

inline float __low2float(half2 x) {
    return __half2float(x.x);
}

inline half2 make_half2(float x, float y) {
    return {__float2half(x), __float2half(y)};
}
