// What a verification costs: llama_decode of 1 to 9 tokens after a prompt, and of a prompt of 512, with ggml's kernels
// and the exact ones in turn. The model is loaded twice, for each side has layouts of its own.
//
//     bench_eagle_decode MODEL.gguf [N_PROMPT [FLASH_ATTN [THREADS]]]
//
// Times are the least of several runs, of the process's CPU time with one thread and of the wall with more.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>

#include "eagle_exact.h"

static const int SIZES[] = {1, 2, 3, 5, 9, 512};
static const int RUNS = 12, PROMPT_RUNS = 2;

struct run {
    llama_context * ctx;
    clockid_t clock;
    int n_vocab;
    int n_past = 0;

    // Seconds for the next n tokens, random ones.
    double decode(int n) {
        llama_batch batch = llama_batch_init(n, 0, 1);
        batch.n_tokens = n;
        for (int i = 0; i < n; ++i) {
            batch.token[i] = rand() % n_vocab;
            batch.pos[i] = n_past++;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = n <= EAGLE_EXACT_MAX_ROWS;
        }
        timespec before, after;
        clock_gettime(clock, &before);
        if (llama_decode(ctx, batch) != 0) {
            fprintf(stderr, "llama_decode failed\n");
            exit(1);
        }
        llama_synchronize(ctx);
        clock_gettime(clock, &after);
        llama_batch_free(batch);
        return (after.tv_sec - before.tv_sec) + 1e-9 * (after.tv_nsec - before.tv_nsec);
    }
};

static run load(const char * path, int exact, int n_prompt, bool flash_attn, int threads) {
    eagle_exact_set(exact);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = n_prompt + 4096;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = threads;
    params.flash_attn_type = flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_model * model = llama_model_load_from_file(path, llama_model_default_params());
    llama_context * ctx = model ? llama_init_from_model(model, params) : nullptr;
    if (ctx == nullptr) {
        fprintf(stderr, "%s does not load\n", path);
        exit(1);
    }
    run r{ctx, threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC,
          llama_vocab_n_tokens(llama_model_get_vocab(model))};
    for (int left = n_prompt; left > 0; left -= 512) {
        r.decode(std::min(left, 512));
    }
    return r;
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [N_PROMPT [FLASH_ATTN [THREADS]]]\n", argv[0]);
        return 2;
    }
    const int n_prompt = argc > 2 ? atoi(argv[2]) : 64, threads = argc > 4 ? atoi(argv[4]) : 2;
    const bool flash_attn = argc <= 3 || atoi(argv[3]) != 0;
    run sides[] = {load(argv[1], 0, n_prompt, flash_attn, threads), load(argv[1], 1, n_prompt, flash_attn, threads)};
    double least[2][std::size(SIZES)];
    std::fill(&least[0][0], &least[0][0] + 2 * std::size(SIZES), 1e9);
    for (int i = 0; i < RUNS; ++i) {
        for (size_t k = 0; k < std::size(SIZES); ++k) {
            const int n = SIZES[k];
            if (n > EAGLE_EXACT_MAX_ROWS && i < RUNS - PROMPT_RUNS) {  // last: it lengthens the context
                continue;
            }
            for (int exact = 0; exact < 2; ++exact) {
                eagle_exact_set(exact);
                if (n <= EAGLE_EXACT_MAX_ROWS) {
                    sides[exact].decode(n);  // the graph of this size is built
                }
                least[exact][k] = std::min(least[exact][k], sides[exact].decode(n));
            }
        }
    }
    for (size_t k = 0; k < std::size(SIZES); ++k) {
        const double theirs = least[0][k], ours = least[1][k];
        printf("rows %3d  ggml %7.1f ms x%5.2f  exact %7.1f ms x%5.2f  exact/ggml %.2f\n", SIZES[k], 1e3 * theirs,
               theirs / least[0][0], 1e3 * ours, ours / least[1][0], ours / theirs);
    }
    for (run & side : sides) {
        llama_model * model = const_cast<llama_model *>(llama_get_model(side.ctx));
        llama_free(side.ctx);
        llama_model_free(model);
    }
    return 0;
}
