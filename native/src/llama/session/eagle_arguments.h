// Argument checks that sessions and sets of drafts share.
#pragma once

#include "eagle_error.h"

namespace eagle {

template <typename T>
void require(const T * pointer, const char * what) {
    if (!pointer) {
        throw Error(EAGLE_ERR_ARGUMENT, format("%s is null", what));
    }
}

void require_in_vocabulary(const llama_token * ids, int32_t n, int64_t n_vocab);

// Fills in defaults: the caller's struct may be shorter (older) than ours.
eagle_session_params merge(const eagle_session_params * given, const llama_model & target, int32_t min_draft_max = 1);

}  // namespace eagle
