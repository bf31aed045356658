// Attention over long contexts: one layer of the 0.8B shape (8 query heads, 2 key and value heads, width 256),
// alternating between ggml's kernel and ours.
//
//     bench_eagle_flash_attn [THREADS [HEADS]]
//
// Times are the minimum of several runs. The runs alternate among the caches of all layers, so that they are read from
// memory.
#include <chrono>
#include <iterator>

#include "eagle_exact.h"
#include "mul_mat_case.h"

static const int64_t CELLS[] = {1024, 8192, 32768};
static const int ROWS[] = {1, 2, 3, 5, 9, 512};
static const int64_t WIDTH = 256, KV_HEADS = 2;
static const int LAYERS = 6, RUNS = 8;

struct layers {
    ggml_context * ctx;
    ggml_backend_buffer_t buffer;
    ggml_cgraph * graph;

    layers(ggml_backend_t backend, ggml_type type, int64_t n_kv, int rows, int64_t heads) {
        ctx = ggml_init({ggml_tensor_overhead() * 8 * LAYERS + ggml_graph_overhead(), nullptr, true});
        graph = ggml_new_graph(ctx);
        for (int i = 0; i < LAYERS; ++i) {
            // Same layout as llama.cpp's cache: the heads of a position are adjacent.
            ggml_tensor * kv[2];
            for (ggml_tensor *& t : kv) {
                t = ggml_permute(ctx, ggml_new_tensor_3d(ctx, type, WIDTH, KV_HEADS, n_kv), 0, 2, 1, 3);
            }
            ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, WIDTH, rows, heads);
            ggml_tensor * mask = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, n_kv, rows, 1);
            ggml_build_forward_expand(graph, ggml_flash_attn_ext(ctx, q, kv[0], kv[1], mask, 1.0f / 16, 0, 0));
        }
        buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
        ggml_backend_buffer_clear(buffer, 0);
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t != nullptr; t = ggml_get_next_tensor(ctx, t)) {
            if (t->op == GGML_OP_NONE && t->ne[0] == WIDTH) {
                const std::vector<float> x = random_floats((size_t) ggml_nelements(t), 1);
                std::vector<char> data(ggml_nbytes(t));
                ggml_quantize_chunk(t->type, x.data(), data.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
                ggml_backend_tensor_set(t, t->type == GGML_TYPE_F32 ? (const void *) x.data() : data.data(), 0,
                                        ggml_nbytes(t));
            }
        }
    }
    ~layers() {
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
};

int main(int argc, char ** argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    const int64_t heads = argc > 2 ? atoi(argv[2]) : 8;
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, threads);
    for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
        for (int64_t cells : CELLS) {
            double one = 0;
            for (int rows : ROWS) {
                double minimum[2] = {1e9, 1e9};
                layers all(backend, type, cells, rows, heads);
                for (int i = 0; i < 2 * RUNS; ++i) {
                    eagle_cpu_exact_set(i % 2);
                    const auto begin = std::chrono::steady_clock::now();
                    ggml_backend_graph_compute(backend, all.graph);
                    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
                    minimum[i % 2] = std::min(minimum[i % 2], took.count() / LAYERS);
                }
                one = rows == 1 ? minimum[1] : one;
                printf("%-5s cells %6d  rows %d  ggml %8.3f ms  ours %8.3f ms x%5.2f  ours/ggml %.2f\n",
                       ggml_type_name(type), (int) cells, rows, minimum[0], minimum[1], minimum[1] / one,
                       minimum[1] / minimum[0]);
                fflush(stdout);
            }
        }
    }
    ggml_backend_free(backend);
    return 0;
}
