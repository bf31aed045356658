// One matrix multiplication as a graph on the CPU backend, for the tests and the micro-benchmark.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "eagle_cpu.h"
#include "eagle_kernels.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

inline std::vector<float> random_floats(size_t n, uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float & v : x) {
        v = normal(rng);
    }
    return x;
}

// Returns the buffer type of a layout, or null if this CPU has none.
inline ggml_backend_buffer_type_t buffer_type(eagle::layout layout) {
    if (layout == eagle::layout::plain) {
        return ggml_backend_cpu_buffer_type();
    }
    const std::string name = layout == eagle::layout::wide ? "CPU_EAGLE" : "CPU_REPACK";
    auto dev = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
    auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * b = extra(dev); *b != nullptr; ++b) {
        if (name == ggml_backend_buft_name(*b)) {
            return *b;
        }
    }
    return nullptr;
}

inline std::vector<char> quantize(ggml_type type, const float * values, int64_t rows, int64_t cols) {
    std::vector<char> data(ggml_row_size(type, cols) * rows);
    ggml_quantize_chunk(type, values, data.data(), 0, rows, cols, nullptr);
    return data;
}

// Weights of one type in memory: `matrices` matrices of rows x cols.
struct weights {
    ggml_context * ctx = nullptr;
    ggml_tensor * tensor = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
    bool readable = false;  // this CPU has the requested layout

    weights(ggml_type type, int64_t cols, int64_t rows, const float * values, eagle::layout layout,
            int64_t matrices = 1)
        : weights(type, cols, rows, quantize(type, values, rows * matrices, cols), layout, matrices) {}

    weights(ggml_type type, int64_t cols, int64_t rows, const std::vector<char> & quantized, eagle::layout layout,
            int64_t matrices = 1) {
        const ggml_backend_buffer_type_t where = buffer_type(layout);
        if (where == nullptr) {
            return;
        }
        ctx = ggml_init({ggml_tensor_overhead() * 2, nullptr, true});
        tensor = matrices > 1 ? ggml_new_tensor_3d(ctx, type, cols, rows, matrices)
                              : ggml_new_tensor_2d(ctx, type, cols, rows);
        buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, where);
        readable = layout == eagle::layout::plain || tensor->extra != nullptr;
        if (readable) {
            ggml_backend_tensor_set(tensor, quantized.data(), 0, quantized.size());
        }
    }
    weights(const weights &) = delete;
    ~weights() {
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
};

// Computes the product with `n` activation rows; out: n x rows floats.
inline std::vector<float> multiply(ggml_backend_t backend, const weights & w, const std::vector<float> & x, int64_t n,
                                   int threads) {
    ggml_context * ctx = ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true});
    ggml_tensor * in = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, w.tensor->ne[0], n);
    ggml_tensor * out = ggml_mul_mat(ctx, w.tensor, in);
    ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    ggml_backend_tensor_set(in, x.data(), 0, ggml_nbytes(in));
    ggml_backend_cpu_set_n_threads(backend, threads);
    if (ggml_backend_graph_compute(backend, g) != GGML_STATUS_SUCCESS) {
        abort();
    }
    std::vector<float> y((size_t) ggml_nelements(out));
    ggml_backend_tensor_get(out, y.data(), 0, ggml_nbytes(out));
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return y;
}
