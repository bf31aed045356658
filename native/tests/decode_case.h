// Timed decoding of random tokens, for the benchmarks.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "eagle_exact.h"

struct decoder {
    llama_context * ctx;
    clockid_t clock;
    int n_vocab;
    int n_past = 0;

    double now() const {
        timespec t;
        clock_gettime(clock, &t);
        return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
    }

    // Decodes n random tokens and returns the seconds.
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
        const double before = now();
        if (llama_decode(ctx, batch) != 0) {
            fprintf(stderr, "llama_decode failed\n");
            exit(1);
        }
        llama_synchronize(ctx);
        const double after = now();
        llama_batch_free(batch);
        return after - before;
    }

    // Loads a model and decodes a prompt. Times are CPU time of the process with one thread, wall time with more.
    static decoder load(const char * path, int n_prompt, llama_context_params params) {
        params.n_ctx = (uint32_t) n_prompt + 4096;
        params.n_batch = params.n_ubatch = 512;
        params.n_threads_batch = params.n_threads;
        llama_model * model = llama_model_load_from_file(path, llama_model_default_params());
        llama_context * ctx = model ? llama_init_from_model(model, params) : nullptr;
        if (ctx == nullptr) {
            fprintf(stderr, "%s does not load\n", path);
            exit(1);
        }
        decoder d{ctx, params.n_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC,
                  llama_vocab_n_tokens(llama_model_get_vocab(model))};
        for (int left = n_prompt; left > 0; left -= 512) {
            d.decode(std::min(left, 512));
        }
        return d;
    }

    void free() {
        llama_model * model = const_cast<llama_model *>(llama_get_model(ctx));
        llama_free(ctx);
        llama_model_free(model);
    }
};
