// Statistics of an MTP head for llama-imatrix, which evaluates the trunk alone. Included once.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "common.h"
#include "llama-cpp.h"
#include "llama-ext.h"
#include "log.h"

// A thread writes the log, and upstream ends the program without it: the reason of a failure would be lost.
static const int eagle_log_is_whole = std::atexit([] { common_log_pause(common_log_main()); });

// Loads the head with the model. The front end sets the variable for a file whose head llama.cpp can evaluate.
inline void eagle_load_head(common_params & params) {
    const char * wanted = std::getenv("LLAMA_EAGLE_IMATRIX_HEAD");
    if (wanted && *wanted) {
        params.speculative.types = {COMMON_SPECULATIVE_TYPE_DRAFT_MTP};
        params.speculative.draft.n_max = 0;  // nothing is rejected, so no recurrent state is kept for a rollback
    }
}

// Evaluates the head on each batch of the trunk. The collector sees its products as it sees those of the trunk.
class eagle_head_statistics {
  public:
    eagle_head_statistics(llama_context * trunk, const common_params & params) : trunk_(trunk) {
        const auto & types = params.speculative.types;
        if (types.empty() || types.front() != COMMON_SPECULATIVE_TYPE_DRAFT_MTP) {
            return;
        }
        llama_model * model = const_cast<llama_model *>(llama_get_model(trunk));
        llama_context_params cparams = common_context_params_to_llama(params);
        cparams.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        cparams.ctx_other = trunk;
        head_.reset(llama_init_from_model(model, cparams));
        if (!head_) {
            LOG_ERR("failed to create a context for the MTP head\n");
            exit(1);
        }
        char name[32] = "";
        llama_model_meta_val_str(model, "general.architecture", name, sizeof(name));
        only_outputs_ = std::string(name) == "qwen3next";
        n_embd_ = llama_model_n_embd_out(model);
        batch_ = common_batch(head_.get());
        llama_set_embeddings_nextn(trunk, true, /*masked*/ false);
    }

    // A new chunk begins.
    void clear() {
        if (head_) {
            llama_memory_clear(llama_get_memory(head_.get()), true);
            last_.assign(llama_n_seq_max(trunk_), std::vector<float>(n_embd_, 0.0f));
        }
    }

    // `batch`: what the trunk has just evaluated, the tokens of each sequence in a row.
    bool process(const common_batch & batch) {
        if (!head_) {
            return true;
        }
        // The head reads a token with the trunk's state one position before it.
        const float * states = llama_get_embeddings_nextn(trunk_);
        batch_.clear();
        for (int32_t i = 0; i < batch.size(); i++) {
            const auto & token = batch.tokens[i];
            const bool is_first = i == 0 || batch.tokens[i - 1].seq_id != token.seq_id;
            const float * state = is_first ? last_[token.seq_id].data() : states + (size_t) (i - 1) * n_embd_;
            const int32_t row = batch_.add(token.id, token.pos[0], token.seq_id, only_outputs_);
            batch_.set_embd(row, {state, 1, (size_t) n_embd_});
        }
        if (llama_process(head_.get(), LLAMA_PROCESS_TYPE_DECODE, batch_.get()) != 0) {
            return false;
        }
        for (int32_t i = 0; i < batch.size(); i++) {
            const auto & token = batch.tokens[i];
            if (i + 1 == batch.size() || batch.tokens[i + 1].seq_id != token.seq_id) {
                last_[token.seq_id].assign(states + (size_t) i * n_embd_, states + (size_t) (i + 1) * n_embd_);
            }
        }
        return true;
    }

  private:
    llama_context * trunk_;
    llama_context_ptr head_;  // null: the model has no head, or none that can be evaluated
    common_batch batch_;
    int32_t n_embd_ = 0;
    bool only_outputs_ = false;             // its graph computes the feed-forward part for output rows alone
    std::vector<std::vector<float>> last_;  // by sequence: the trunk's state at the end of the previous batch
};
