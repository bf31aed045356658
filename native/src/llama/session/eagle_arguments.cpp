#include "eagle_arguments.h"

#include <cstring>

namespace eagle {

namespace {

constexpr int32_t MAX_DRAFT_POSITIONS = 1 << 26;  // keeps sums in 32 bits; no model is trained for 1 % of it

}  // namespace

void require_in_vocabulary(const llama_token * ids, int32_t n, int64_t n_vocab) {
    require(ids, "tokens");
    if (n <= 0) {
        throw Error(EAGLE_ERR_ARGUMENT, format("%d tokens", n));
    }
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_vocab) {
            throw Error(EAGLE_ERR_ARGUMENT,
                        format("token %d is outside the vocabulary of %lld", ids[i], (long long) n_vocab));
        }
    }
}

eagle_session_params merge(const eagle_session_params * given, const llama_model & target, int32_t min_draft_max) {
    eagle_session_params params = eagle_session_default_params();
    if (given) {
        if (given->struct_size < sizeof(size_t) || given->struct_size > sizeof params) {
            throw Error(EAGLE_ERR_ARGUMENT, format("params.struct_size is %zu, this library knows up to %zu",
                                                   given->struct_size, sizeof params));
        }
        std::memcpy(&params, given, given->struct_size);
    }
    if (params.n_draft_max < min_draft_max || params.n_ctx < 0) {
        throw Error(EAGLE_ERR_ARGUMENT, format("n_draft_max is %d, n_ctx %d", params.n_draft_max, params.n_ctx));
    }
    if (params.n_threads < 0 || params.n_threads > GGML_MAX_N_THREADS) {
        throw Error(EAGLE_ERR_ARGUMENT, format("n_threads is %d, not 0 to %d", params.n_threads, GGML_MAX_N_THREADS));
    }
    if (params.n_ctx_draft < 0 || params.n_ctx_draft > MAX_DRAFT_POSITIONS) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("n_ctx_draft is %d, not 0 to %d", params.n_ctx_draft, MAX_DRAFT_POSITIONS));
    }
    if (params.n_vocab_draft < 0 || params.n_base_ids < 0) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("n_vocab_draft is %d, n_base_ids %d", params.n_vocab_draft, params.n_base_ids));
    }
    if (params.n_base_ids > 0) {
        require_in_vocabulary(params.base_ids, params.n_base_ids, llama_vocab_n_tokens(llama_model_get_vocab(&target)));
    }
    return params;
}

}  // namespace eagle
