// RMS and L2 norms: close to float64 at every width, contiguous or not, and the same bits alone and in a batch.
#include <cstring>

#include "mul_mat_case.h"

static int failures = 0;

static void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAIL %s\n", what.c_str());
        ++failures;
    }
}

// The norm of rows of `width` values each; `apart`: the values of a row lie two floats apart.
static std::vector<float> norm(ggml_backend_t backend, bool rms, const std::vector<float> & x, int64_t width,
                               bool apart) {
    const int64_t rows = (int64_t) x.size() / width, step = apart ? 2 : 1;
    ggml_context * ctx = ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true});
    ggml_tensor * all = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, step, width, rows);
    ggml_tensor * in = ggml_view_2d(ctx, all, width, rows, all->nb[2], 0);
    if (apart) {
        in->nb[0] = all->nb[1];
    }
    ggml_tensor * out = rms ? ggml_rms_norm(ctx, in, 1e-6f) : ggml_l2_norm(ctx, in, 1e-6f);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    std::vector<float> data((size_t) ggml_nelements(all));
    for (size_t i = 0; i < x.size(); ++i) {
        data[i * (size_t) step] = x[i];
    }
    ggml_backend_tensor_set(all, data.data(), 0, ggml_nbytes(all));
    ggml_backend_cpu_set_n_threads(backend, 2);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        abort();
    }
    std::vector<float> y(x.size());
    ggml_backend_tensor_get(out, y.data(), 0, ggml_nbytes(out));
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return y;
}

static void check_norm(ggml_backend_t backend, bool rms, int64_t width) {
    constexpr int64_t ROWS = 5;
    const std::vector<float> x = random_floats((size_t) (ROWS * width), (uint32_t) width);
    const std::vector<float> y = norm(backend, rms, x, width, false);
    const std::string name = std::string(rms ? "RMS" : "L2") + " norm of " + std::to_string(width);
    for (int64_t row = 0; row < ROWS; ++row) {
        const std::vector<float> one(x.begin() + row * width, x.begin() + (row + 1) * width);
        double squares = 0;
        for (float v : one) {
            squares += (double) v * v;
        }
        const double scale = rms ? 1 / sqrt(squares / (double) width + 1e-6) : 1 / std::max(sqrt(squares), 1e-6);
        for (int64_t i = 0; i < width; ++i) {
            check(fabs(y[row * width + i] - one[i] * scale) <= 1e-6 * fabs(one[i] * scale), name + ": accuracy");
        }
        const std::vector<float> alone = norm(backend, rms, one, width, false);
        check(memcmp(alone.data(), &y[row * width], alone.size() * sizeof(float)) == 0, name + ": alone");
    }
    if (!rms) {  // RMS norms take rows without gaps only
        const std::vector<float> apart = norm(backend, rms, x, width, true);
        for (size_t i = 0; i < x.size(); ++i) {
            check(fabs(apart[i] - y[i]) <= 1e-6 * fabs(y[i]), name + ": apart");
        }
    }
}

int main() {
    ggml_backend_t backend = ggml_backend_cpu_init();
    for (int64_t width : {1, 7, 16, 31, 32, 33, 64, 100, 128, 256, 1024, 2560, 5120}) {
        check_norm(backend, true, width);
        check_norm(backend, false, width);
    }
    ggml_backend_free(backend);
    printf("%s\n", failures == 0 ? "ok" : "failed");
    return failures == 0 ? 0 : 1;
}
