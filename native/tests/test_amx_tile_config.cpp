// Regression test of patch 0001: a Q8_0 matrix product in an AMX buffer, whose tile configuration gcc 12 drops, and the
// same product after other code in the process (for example torch) has released the thread's tiles. Without the patch
// it crashes with SIGILL on a machine with AMX. On other machines ggml offers no AMX buffer, and the test reports that
// it was skipped.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

constexpr int64_t K = 256, N = 64, M = 8;

ggml_backend_buffer_type_t amx_buffer_type() {
    auto * reg = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    auto * get =
        (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    auto * types = get ? get(ggml_backend_reg_dev_get(reg, 0)) : nullptr;
    for (; types && *types; types++) {
        if (std::strcmp(ggml_backend_buft_name(*types), "AMX") == 0) {
            return *types;
        }
    }
    return nullptr;
}

// _tile_release as bytes, because the tests are compiled for any x86-64.
void release_tiles() {
#if defined(__x86_64__)
    __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0");
#endif
}

ggml_context_ptr make_context() {
    ggml_init_params params = {};
    params.mem_size = 1 << 20;
    params.no_alloc = true;
    return ggml_context_ptr(ggml_init(params));
}

}  // namespace

int main() {
    ggml_backend_buffer_type_t amx = amx_buffer_type();
    if (!amx) {
        std::puts("no AMX on this machine: nothing to test");
        return 0;
    }
    std::vector<float> a(K * N), b(K * M), expected(N * M), got(N * M);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = std::sin(0.37f * (float) i);
    }
    for (size_t i = 0; i < b.size(); i++) {
        b[i] = std::cos(0.11f * (float) i);
    }
    for (int64_t m = 0; m < M; m++) {
        for (int64_t n = 0; n < N; n++) {
            for (int64_t k = 0; k < K; k++) {
                expected[m * N + n] += a[n * K + k] * b[m * K + k];
            }
        }
    }

    ggml_context_ptr weights = make_context(), compute = make_context();
    ggml_tensor * ta = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q8_0, K, N);
    ggml_backend_buffer_ptr weight_buffer(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), amx));
    std::vector<char> quantized(ggml_nbytes(ta));
    ggml_quantize_chunk(GGML_TYPE_Q8_0, a.data(), quantized.data(), 0, N, K, nullptr);
    ggml_backend_tensor_set(ta, quantized.data(), 0, quantized.size());

    ggml_backend_ptr backend(ggml_backend_cpu_init());
    ggml_tensor * tb = ggml_new_tensor_2d(compute.get(), GGML_TYPE_F32, K, M);
    ggml_tensor * product = ggml_mul_mat(compute.get(), ta, tb);
    ggml_cgraph * graph = ggml_new_graph(compute.get());
    ggml_build_forward_expand(graph, product);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(compute.get(), backend.get()));
    ggml_backend_tensor_set(tb, b.data(), 0, ggml_nbytes(tb));
    for (int run = 0; run < 2; run++) {
        if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS) {
            std::puts("compute failed");
            return 1;
        }
        release_tiles();
    }
    ggml_backend_tensor_get(product, got.data(), 0, ggml_nbytes(product));
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); i++) {
        error += std::pow(got[i] - expected[i], 2);
        norm += std::pow(expected[i], 2);
    }
    std::printf("AMX: normalized squared error %.2e\n", error / norm);
    return error / norm < 1e-3 ? 0 : 1;
}
