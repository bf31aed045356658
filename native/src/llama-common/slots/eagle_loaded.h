// What later requests need to know of the model that is loaded.
#pragma once

#include <atomic>

#include "eagle_literals.h"
#include "eagle_model_files.h"
#include "eagle_tokens.h"
#include "llama.h"

// Whether the pooled vectors of the model hold scores for reranking instead of embeddings.
inline std::atomic<bool> & eagle_has_scores() {
    static std::atomic<bool> value{false};
    return value;
}

inline void eagle_loaded(const llama_context * ctx, const common_params & params) {
    const llama_vocab * vocab = llama_model_get_vocab(llama_get_model(ctx));
    eagle_literals::load(vocab);
    eagle_trained_context() = llama_model_n_ctx_train(llama_get_model(ctx));
    eagle_n_tokens() = llama_vocab_n_tokens(vocab);
    eagle_model_files::remember(params, llama_get_model(ctx));
    eagle_has_scores() = llama_pooling_type(ctx) == LLAMA_POOLING_TYPE_RANK;
}
