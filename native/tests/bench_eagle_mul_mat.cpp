// Matrix multiplication by 1 to 32 rows and by a prompt of 512, alternating between ggml's kernels and the exact ones,
// over more weights than fit into the caches.
//
//     bench_eagle_mul_mat [TYPE|all [THREADS [ROWS COLS]]]
//
// Times are the minimum of several runs: CPU time of the process with one thread, wall time with more.
#include <ctime>
#include <memory>

#include "mul_mat_case.h"

using eagle::layout;

struct kind {
    const char * name;
    ggml_type type;
    layout theirs, ours;
};

static const kind KINDS[] = {{"q8_0", GGML_TYPE_Q8_0, layout::plain, layout::wide},
                             {"q4_K", GGML_TYPE_Q4_K, layout::interleaved, layout::wide},
                             {"q6_K", GGML_TYPE_Q6_K, layout::plain, layout::wide},
                             {"q5_K", GGML_TYPE_Q5_K, layout::plain, layout::wide},
                             {"q4_0", GGML_TYPE_Q4_0, layout::interleaved, layout::wide},
                             {"iq4_xs", GGML_TYPE_IQ4_XS, layout::plain, layout::wide},
                             {"iq4_nl", GGML_TYPE_IQ4_NL, layout::interleaved, layout::wide},
                             {"q3_K", GGML_TYPE_Q3_K, layout::plain, layout::wide},
                             {"q5_0", GGML_TYPE_Q5_0, layout::plain, layout::wide},
                             {"q5_1", GGML_TYPE_Q5_1, layout::plain, layout::wide},
                             {"q4_1", GGML_TYPE_Q4_1, layout::plain, layout::wide},
                             {"q2_K", GGML_TYPE_Q2_K, layout::interleaved, layout::wide},
                             {"mxfp4", GGML_TYPE_MXFP4, layout::plain, layout::wide},
                             {"iq3_xxs", GGML_TYPE_IQ3_XXS, layout::plain, layout::plain},
                             {"iq3_s", GGML_TYPE_IQ3_S, layout::plain, layout::plain},
                             {"f16", GGML_TYPE_F16, layout::plain, layout::plain},
                             {"bf16", GGML_TYPE_BF16, layout::plain, layout::plain},
                             {"f32", GGML_TYPE_F32, layout::plain, layout::plain}};
static const int64_t BYTES = 128 << 20;
static const int RUNS = 10;

static double seconds(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

using weight_set = std::vector<std::unique_ptr<weights>>;

// Repeated products of every matrix of a set.
struct products {
    ggml_context * ctx;
    ggml_cgraph * graph;
    ggml_backend_buffer_t buffer;

    products(ggml_backend_t backend, const weight_set & set, int64_t n) {
        const int64_t cols = set[0]->tensor->ne[0];
        ctx = ggml_init({ggml_tensor_overhead() * (set.size() + 8) + ggml_graph_overhead(), nullptr, true});
        ggml_tensor * in = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, cols, n);
        graph = ggml_new_graph(ctx);
        for (const auto & w : set) {
            ggml_build_forward_expand(graph, ggml_mul_mat(ctx, w->tensor, in));
        }
        buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
        const std::vector<float> x = random_floats((size_t) (cols * n), 2);
        ggml_backend_tensor_set(in, x.data(), 0, ggml_nbytes(in));
    }
    products(const products &) = delete;
    ~products() {
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
};

static weight_set copies(const kind & k, layout l, int64_t rows, int64_t cols, const std::vector<char> & quantized) {
    weight_set set;
    for (int64_t used = 0; used < BYTES; used += (int64_t) quantized.size()) {
        set.emplace_back(new weights(k.type, cols, rows, quantized, l));
    }
    return set;
}

static void bench_kind(ggml_backend_t backend, const kind & k, int threads, int64_t rows, int64_t cols) {
    const std::vector<char> values = quantize(k.type, random_floats((size_t) (rows * cols), 1).data(), rows, cols);
    const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    const weight_set theirs = copies(k, k.theirs, rows, cols, values);
    const weight_set own = k.ours == k.theirs ? weight_set() : copies(k, k.ours, rows, cols, values);
    const weight_set & ours = own.empty() ? theirs : own;
    const double gigabytes = 1e-9 * (double) ggml_nbytes(theirs[0]->tensor) * (double) theirs.size();
    double one[2] = {0, 0};
    for (int64_t n : {1, 2, 3, 5, 9, 16, 32, 512}) {
        const products sides[] = {{backend, theirs, n}, {backend, ours, n}};
        double minimum[2] = {1e9, 1e9};
        for (int run = 0; run < (n > 32 ? 3 : RUNS); ++run) {
            for (int exact = 0; exact < 2; ++exact) {
                eagle_cpu_exact_set(exact);
                const double start = seconds(clock);
                ggml_backend_graph_compute(backend, sides[exact].graph);
                minimum[exact] = std::min(minimum[exact], seconds(clock) - start);
            }
        }
        if (n == 1) {
            one[0] = minimum[0];
            one[1] = minimum[1];
        }
        printf("%-6s rows %3d  ggml %8.2f ms x%5.2f  exact %8.2f ms x%5.2f  %5.1f GB/s  exact/ggml %.2f\n", k.name,
               (int) n, 1e3 * minimum[0], minimum[0] / one[0], 1e3 * minimum[1], minimum[1] / one[1],
               gigabytes / minimum[1], minimum[1] / minimum[0]);
        fflush(stdout);
    }
}

int main(int argc, char ** argv) {
    const std::string wanted = argc > 1 ? argv[1] : "all";
    const int threads = argc > 2 ? atoi(argv[2]) : 2;
    const int64_t rows = argc > 4 ? atoll(argv[3]) : 3584, cols = argc > 4 ? atoll(argv[4]) : 1024;
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, threads);
    for (const kind & k : KINDS) {
        if (wanted == "all" || wanted == k.name) {
            bench_kind(backend, k, threads, rows, cols);
        }
    }
    ggml_backend_free(backend);
    return 0;
}
