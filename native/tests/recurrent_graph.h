// Parts of the tests of eagle_gdn.h: graphs on one device, random values, comparisons.

#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "eagle_gdn.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

namespace recurrent {

using floats = std::vector<float>;

inline floats random_floats(std::mt19937 & rng, size_t n, float lo, float hi) {
    std::uniform_real_distribution<float> dist(lo, hi);
    floats out(n);
    for (float & x : out) {
        x = dist(rng);
    }
    return out;
}

// A graph on one device with its tensors, filled and read by host vectors.
struct graph {
    ggml_backend_t backend;
    ggml_context_ptr ctx;
    ggml_cgraph * gf;
    ggml_backend_buffer_ptr buffer;

    explicit graph(ggml_backend_t backend) : backend(backend) {
        ggml_init_params params = {64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true};
        ctx.reset(ggml_init(params));
        gf = ggml_new_graph(ctx.get());
    }

    ggml_tensor * f32(int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
        return ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F32, a, b, c, d);
    }

    void allocate(ggml_tensor * result) {
        ggml_build_forward_expand(gf, result);
        buffer.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), backend));
    }

    static void set(ggml_tensor * t, const floats & data) {
        GGML_ASSERT(data.size() == (size_t) ggml_nelements(t));
        ggml_backend_tensor_set(t, data.data(), 0, ggml_nbytes(t));
    }

    static floats get(ggml_tensor * t) {
        floats out(ggml_nelements(t));
        ggml_backend_tensor_get(t, out.data(), 0, ggml_nbytes(t));
        return out;
    }

    void compute() { GGML_ASSERT(ggml_backend_graph_compute(backend, gf) == GGML_STATUS_SUCCESS); }
};

inline void set_operation(ggml_tensor * op, ggml_op kind, int64_t n_recorded, int64_t offset) {
    op->op = kind;
    op->op_params[EAGLE_GDN_PARAM_N_RECORDED] = (int32_t) n_recorded;
    op->op_params[EAGLE_GDN_PARAM_OFFSET] = (int32_t) offset;
}

inline bool equal(const float * a, const floats & b) {
    return b.empty() || memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

inline bool close(const float * a, const floats & b) {
    double err = 0, norm = 1e-12;
    for (size_t i = 0; i < b.size(); i++) {
        err += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
        norm += (double) b[i] * b[i];
    }
    return err / norm < 1e-10 && !std::isnan(err);
}

}  // namespace recurrent
