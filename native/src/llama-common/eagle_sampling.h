// What llama.cpp's common library asks before it samples.
#pragma once

#include <vector>

#include "eagle_candidates.h"

// The candidates that the chain can tell from all of a row's, which for a large vocabulary takes as long as a layer.
// False: the chain needs them all.
inline bool eagle_set_candidates(llama_context * ctx, int idx, llama_sampler * chain,
                                 std::vector<llama_token_data> & room, llama_token_data_array & found) {
    room.resize((size_t) llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))));
    const int32_t n = eagle_candidates(ctx, chain, idx, room.data());
    found = {room.data(), (size_t) n, -1, false};
    return n > 0;
}
