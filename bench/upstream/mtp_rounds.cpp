// Runs llama.cpp's own draft-mtp driver through rounds that are told to it: the judge of what our MTP drafter drafts.
//
//   mtp-rounds MODEL.gguf INPUT OUTPUT
//
// INPUT:  int32 n_prompt, n_draft, n_rounds; prompt[n_prompt]; per round n_kept and rows[n_draft + 1]
// OUTPUT: int32 drafted[n_rounds][n_draft]
//
// Round: draft after rows[0], then decode all rows in the target whatever was drafted, and keep the first n_kept. Where
// llama.cpp cannot take back a part (Qwen3-Next), only those are decoded. Both memories are float32, without flash
// attention.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"
#include "log.h"
#include "speculative.h"

namespace {

struct script {
    int32_t n_prompt, n_draft, n_rounds;
    std::vector<int32_t> prompt;
    std::vector<std::vector<int32_t>> rounds;  // n_kept, then the rows

    size_t n_tokens() const { return prompt.size() + rounds.size() * (size_t) (n_draft + 1); }
};

void require(bool ok, const std::string & what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

void read(std::istream & in, int32_t * data, size_t n) {
    require((bool) in.read((char *) data, (std::streamsize) (n * sizeof(int32_t))), "the input is too short");
}

script read_script(const char * path) {
    std::ifstream in(path, std::ios::binary);
    script s = {};
    read(in, &s.n_prompt, 1);
    read(in, &s.n_draft, 1);
    read(in, &s.n_rounds, 1);
    require(s.n_prompt > 0 && s.n_draft > 0 && s.n_rounds > 0, "the input's sizes must be positive");
    s.prompt.resize((size_t) s.n_prompt);
    read(in, s.prompt.data(), s.prompt.size());
    s.rounds.assign((size_t) s.n_rounds, std::vector<int32_t>((size_t) s.n_draft + 2));
    for (auto & round : s.rounds) {
        read(in, round.data(), round.size());
        require(round[0] > 0 && round[0] <= s.n_draft + 1, "a round keeps 1 to n_draft + 1 rows");
    }
    require(in.peek() == EOF, "the input is too long");
    return s;
}

common_params make_params(const char * model, const script & s) {
    common_params params;
    params.model.path = model;
    params.n_gpu_layers = 0;
    params.n_ctx = (int32_t) s.n_tokens() + 64;
    params.n_batch = std::max(2048, s.n_prompt);
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1;
    params.cache_type_k = params.cache_type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.fit_params = params.warmup = false;
    params.speculative.types = {COMMON_SPECULATIVE_TYPE_DRAFT_MTP};
    params.speculative.draft.n_max = s.n_draft;
    params.speculative.draft.cache_type_k = params.speculative.draft.cache_type_v = GGML_TYPE_F32;
    const auto limits = common_speculative_get_output_limits(params.n_batch, params.n_parallel, s.n_draft);
    params.n_outputs_max = limits.total;
    params.n_outputs_max_per_seq = limits.per_seq;
    return params;
}

class driver {
  public:
    driver(common_params params) : target(common_init_from_params(params)) {
        require(target->context() != nullptr, params.model.path + " does not load");
        common_params params_dft = common_base_params_to_speculative(params);
        draft = common_speculative_init_from_params(params_dft, target->model(), target->context());
        require(draft->context() != nullptr, "llama.cpp makes no MTP context");
        takes_back = common_context_can_seq_rm(target->context()) != COMMON_CONTEXT_SEQ_RM_TYPE_FULL;
        params.speculative.draft.ctx_tgt = target->context();
        params.speculative.draft.ctx_dft = draft->context();
        speculative.reset(common_speculative_init(params.speculative, 1));
        require(speculative != nullptr, "llama.cpp makes no MTP drafter");
    }

    void prompt(const std::vector<int32_t> & tokens) {
        decode(tokens.data(), tokens.size(), false);
        past = tokens;
        common_speculative_begin(speculative.get(), 0, past);
    }

    std::vector<int32_t> round(const std::vector<int32_t> & told, int32_t n_draft) {
        const int32_t n_kept = told[0], *rows = told.data() + 1;
        llama_tokens drafted;
        common_speculative_get_draft_params(speculative.get(), 0) = {true,    n_draft, (llama_pos) past.size(),
                                                                     rows[0], &past,   &drafted};
        common_speculative_draft(speculative.get());
        require((int32_t) drafted.size() == n_draft, "a draft is too short");
        trim(draft->context());
        decode(rows, takes_back ? told.size() - 1 : (size_t) n_kept, true);
        common_speculative_accept(speculative.get(), 0, (uint16_t) (n_kept - 1));
        past.insert(past.end(), rows, rows + n_kept);
        trim(target->context());
        trim(draft->context());
        return drafted;
    }

  private:
    common_init_result_ptr target;
    common_speculative_init_result_ptr draft;
    common_speculative_ptr speculative;
    llama_tokens past;
    bool takes_back;

    void decode(const int32_t * tokens, size_t n, bool outputs) {
        common_batch batch(target->context());
        for (size_t i = 0; i < n; i++) {
            batch.add(tokens[i], (llama_pos) (past.size() + i), 0, outputs);
        }
        const int32_t status = llama_process(target->context(), LLAMA_PROCESS_TYPE_DECODE, batch.get());
        require(status == 0, "llama_process returns " + std::to_string(status));
        require(common_speculative_process(speculative.get(), batch), "the drafter refuses a batch");
    }

    void trim(llama_context * ctx) const {
        require(llama_memory_seq_rm(llama_get_memory(ctx), 0, (llama_pos) past.size(), -1), "a rollback fails");
    }
};

void run(char ** paths) {
    const script s = read_script(paths[1]);
    driver mtp(make_params(paths[0], s));
    mtp.prompt(s.prompt);
    std::ofstream out(paths[2], std::ios::binary);
    for (const auto & told : s.rounds) {
        const auto drafted = mtp.round(told, s.n_draft);
        out.write((const char *) drafted.data(), (std::streamsize) (drafted.size() * sizeof(int32_t)));
    }
    require((bool) out.flush(), std::string(paths[2]) + " cannot be written");
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 4) {
        std::fputs("usage: mtp-rounds MODEL.gguf INPUT OUTPUT\n", stderr);
        return 2;
    }
    common_init();
    common_log_set_verbosity_thold(LOG_LEVEL_ERROR);
    llama_backend_init();
    int status = 0;
    try {
        run(argv + 1);
    } catch (const std::exception & error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        status = 1;
    }
    llama_backend_free();
    return status;
}
