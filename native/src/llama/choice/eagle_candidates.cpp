#include "eagle_candidates.h"

#include <algorithm>

#include "eagle_sample.h"

int32_t eagle_candidates(llama_context * ctx, llama_sampler * chain, int32_t row, llama_token_data * out) {
    try {
        std::vector<llama_token_data> found;
        if (!eagle::few_candidates(ctx, chain, row, found)) {
            return 0;
        }
        std::copy(found.begin(), found.end(), out);
        return (int32_t) found.size();
    } catch (const std::exception &) {
        return 0;  // llama.cpp reports the error
    }
}
