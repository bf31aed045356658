// Cost of a verification: llama_decode of 1 to 9 tokens after a prompt, and of a prompt of 512, alternating between
// ggml's kernels and the exact ones. The model is loaded twice, because the two use different layouts.
//
//     bench_eagle_decode MODEL.gguf [N_PROMPT [FLASH_ATTN [THREADS]]]
//
// Times are the minimum of several runs.
#include <iterator>

#include "decode_case.h"

static const int SIZES[] = {1, 2, 3, 5, 9, 512};
static const int RUNS = 12, PROMPT_RUNS = 2;

static decoder load(const char * path, int exact, int n_prompt, const llama_context_params & params) {
    eagle_exact_set(exact);
    return decoder::load(path, n_prompt, params);
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [N_PROMPT [FLASH_ATTN [THREADS]]]\n", argv[0]);
        return 2;
    }
    const int n_prompt = argc > 2 ? atoi(argv[2]) : 64;
    const bool flash_attn = argc <= 3 || atoi(argv[3]) != 0;
    llama_context_params params = llama_context_default_params();
    params.n_threads = argc > 4 ? atoi(argv[4]) : 2;
    params.flash_attn_type = flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    decoder sides[] = {load(argv[1], 0, n_prompt, params), load(argv[1], 1, n_prompt, params)};
    double minimum[2][std::size(SIZES)];
    std::fill(&minimum[0][0], &minimum[0][0] + 2 * std::size(SIZES), 1e9);
    for (int i = 0; i < RUNS; ++i) {
        for (size_t k = 0; k < std::size(SIZES); ++k) {
            const int n = SIZES[k];
            if (n > EAGLE_EXACT_MAX_ROWS &&
                i < RUNS - PROMPT_RUNS) {  // measured last, because it lengthens the context
                continue;
            }
            for (int exact = 0; exact < 2; ++exact) {
                eagle_exact_set(exact);
                if (n <= EAGLE_EXACT_MAX_ROWS) {
                    sides[exact].decode(n);  // builds the graph of this size
                }
                minimum[exact][k] = std::min(minimum[exact][k], sides[exact].decode(n));
            }
        }
    }
    for (size_t k = 0; k < std::size(SIZES); ++k) {
        const double theirs = minimum[0][k], ours = minimum[1][k];
        printf("rows %3d  ggml %7.1f ms x%5.2f  exact %7.1f ms x%5.2f  exact/ggml %.2f\n", SIZES[k], 1e3 * theirs,
               theirs / minimum[0][0], 1e3 * ours, ours / minimum[1][0], ours / theirs);
    }
    for (decoder & side : sides) {
        side.free();
    }
    return 0;
}
