// Runs an EAGLE-3 draft in llama.cpp's own graph through llama.cpp's interface: the reference for the stock layout.
//
//   stock_draft TARGET.gguf DRAFT.gguf INPUT OUTPUT
//
// INPUT:  int32 n_slots, n_steps, width; int32 tokens[n_slots]; float features[n_slots][width]
// OUTPUT: int32 n_rows, n_vocab, n_embd; float rows[n_rows][n_vocab + n_embd], logits and hidden
//
// Slot P evaluates (tokens[P], fc(features[P])) at position P. All slots but the last are one batch; the last one
// starts a greedy chain of n_steps: n_rows = n_slots - 1 + n_steps. tests/parity/test_draft_stock.py compares the
// results.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama-cpp.h"
#include "llama-ext.h"

namespace {

constexpr int32_t N_CTX = 256;

using floats = std::vector<float>;

struct round_input {
    int32_t n_slots, n_steps, width;
    std::vector<llama_token> tokens;
    floats features;
};

void require(bool ok, const std::string & what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

template <typename T>
void read(std::istream & in, T * data, size_t n) {
    require((bool) in.read((char *) data, (std::streamsize) (n * sizeof(T))), "the input is too short");
}

round_input read_input(const char * path) {
    std::ifstream in(path, std::ios::binary);
    round_input input = {};
    read(in, &input.n_slots, 1);
    read(in, &input.n_steps, 1);
    read(in, &input.width, 1);
    require(input.n_slots > 0 && input.n_steps > 0 && input.width > 0, "the input's sizes must be positive");
    require(input.n_slots <= N_CTX && input.n_steps <= N_CTX - input.n_slots, "the input exceeds the context");
    input.tokens.resize(input.n_slots);
    read(in, input.tokens.data(), input.tokens.size());
    input.features.resize((size_t) input.n_slots * input.width);
    read(in, input.features.data(), input.features.size());
    require(in.peek() == EOF, "the input is too long");
    return input;
}

llama_model_ptr load_model(const char * path) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    llama_model_ptr model(llama_model_load_from_file(path, params));
    require(model != nullptr, std::string(path) + " does not load");
    return model;
}

// Computes in float32, including the KV memory, without flash attention.
llama_context_ptr make_context(llama_model * model, llama_context * other) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.ctx_other = other;
    llama_context_ptr ctx(llama_init_from_model(model, params));
    require(ctx != nullptr, "llama.cpp makes no context");
    return ctx;
}

class stock_draft {
  public:
    const int32_t n_embd, n_vocab;
    floats rows;  // [n_rows][n_vocab + n_embd]

    stock_draft(llama_model * model, llama_context * ctx)
        : n_embd(llama_model_n_embd(model)),
          n_vocab(llama_vocab_n_tokens(llama_model_get_vocab(model))),
          ctx(ctx),
          batch(llama_batch_ext_init(ctx)) {
        llama_set_embeddings_nextn(ctx, true, /*masked*/ true);
    }

    // [n_slots][n_embd]
    floats encode(const round_input & input) {
        llama_batch_ext_clear(batch.get());
        for (llama_pos i = 0; i < input.n_slots; i++) {
            const llama_embd row = {&input.features[(size_t) i * input.width], 1, (size_t) input.width};
            finish(llama_batch_ext_add_embd(batch.get(), 0, row), i);
        }
        process(LLAMA_PROCESS_TYPE_ENCODE);
        const float * g = llama_get_embeddings_nextn(ctx);
        require(g != nullptr, "the encoder has no output");
        return floats(g, g + (size_t) input.n_slots * n_embd);
    }

    // All rows are outputs: the eagle3 graph does not select among them.
    void decode(const llama_token * tokens, const float * hidden, int32_t n, llama_pos first) {
        llama_batch_ext_clear(batch.get());
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = llama_batch_ext_add_token(batch.get(), 0, tokens[i]);
            const llama_embd row = {hidden + (size_t) i * n_embd, 1, (size_t) n_embd};
            require(llama_batch_ext_set_embd_token(batch.get(), at, row), "the batch takes no hidden state");
            finish(at, first + i);
        }
        process(LLAMA_PROCESS_TYPE_DECODE);
        for (int32_t i = 0; i < n; i++) {
            append(llama_get_logits_ith(ctx, i), n_vocab);
            append(llama_get_embeddings_nextn_ith(ctx, i), n_embd);
        }
    }

    void chain(llama_token token, const float * g, llama_pos first, int32_t n_steps) {
        floats hidden(g, g + n_embd);
        for (int32_t i = 0; i < n_steps; i++) {
            decode(&token, hidden.data(), 1, first + i);
            hidden.assign(rows.end() - n_embd, rows.end());
            const auto logits = rows.end() - n_embd - n_vocab;
            token = (llama_token) (std::max_element(logits, logits + n_vocab) - logits);
        }
    }

  private:
    llama_context * ctx;
    llama_batch_ext_ptr batch;

    void finish(int32_t at, llama_pos pos) {
        require(at >= 0, "the batch refuses a row (" + std::to_string(at) + ")");
        require(llama_batch_ext_set_pos(batch.get(), at, &pos), "the batch takes no position");
        require(llama_batch_ext_set_output_logits(batch.get(), at, true), "the batch takes no output flag");
    }

    void process(llama_process_type type) {
        const int32_t status = llama_process(ctx, type, batch.get());
        require(status == 0, "llama_process returns " + std::to_string(status));
    }

    void append(const float * data, int32_t n) {
        require(data != nullptr, "the decoder has no output");
        rows.insert(rows.end(), data, data + n);
    }
};

void write_output(const char * path, const stock_draft & draft) {
    const int32_t width = draft.n_vocab + draft.n_embd;
    const int32_t header[] = {(int32_t) (draft.rows.size() / width), draft.n_vocab, draft.n_embd};
    std::ofstream out(path, std::ios::binary);
    out.write((const char *) header, sizeof(header));
    out.write((const char *) draft.rows.data(), (std::streamsize) (draft.rows.size() * sizeof(float)));
    require((bool) out.flush(), std::string(path) + " cannot be written");
}

void run(char ** paths) {
    const round_input input = read_input(paths[2]);
    const llama_model_ptr target = load_model(paths[0]), model = load_model(paths[1]);
    const llama_context_ptr ctx_tgt = make_context(target.get(), nullptr);
    const llama_context_ptr ctx_dft = make_context(model.get(), ctx_tgt.get());
    stock_draft draft(model.get(), ctx_dft.get());
    const floats g = draft.encode(input);
    const int32_t last = input.n_slots - 1;
    if (last > 0) {
        draft.decode(input.tokens.data(), g.data(), last, 0);
    }
    draft.chain(input.tokens[last], &g[(size_t) last * draft.n_embd], last, input.n_steps);
    write_output(paths[3], draft);
}

void log_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 5) {
        std::fputs("usage: stock_draft TARGET.gguf DRAFT.gguf INPUT OUTPUT\n", stderr);
        return 2;
    }
    llama_log_set(log_errors, nullptr);
    ggml_backend_load_all();
    llama_backend_init();
    try {
        run(argv + 1);
    } catch (const std::exception & error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    llama_backend_free();
    return 0;
}
