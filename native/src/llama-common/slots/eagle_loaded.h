// What later requests need to know of the model that is loaded.
#pragma once

#include <atomic>

#include "eagle_literals.h"
#include "eagle_model_files.h"
#include "llama.h"

// Whether the pooled vectors of the model hold scores for reranking instead of embeddings.
inline std::atomic<bool> & eagle_has_scores() {
    static std::atomic<bool> value{false};
    return value;
}

inline void eagle_loaded(const llama_context * ctx, const common_params & params) {
    eagle_literals::load(llama_model_get_vocab(llama_get_model(ctx)));
    eagle_model_files::remember(params, llama_get_model(ctx));
    eagle_has_scores() = llama_pooling_type(ctx) == LLAMA_POOLING_TYPE_RANK;
}
