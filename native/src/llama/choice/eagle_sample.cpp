#include "eagle_sample.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <queue>

#include "eagle_error.h"
#include "eagle_first_maximum.h"
#include "eagle_grammar.h"
#include "llama-context.h"

namespace eagle {

namespace {

constexpr int64_t BLOCK = 256;      // logits that one comparison can skip
constexpr int32_t MAX_TOP_K = 128;  // for larger k llama.cpp's top-k does not use std::partial_sort

// The first sampler of a chain.
enum class Start { ANYTHING, TOP_K, GREEDY };

// Skips disabled samplers, whose names begin with "?". Greedy counts only if it is the last sampler.
Start start_of(llama_sampler * chain, llama_sampler *& first) {
    const int32_t n = llama_sampler_chain_get(chain, -1) ? llama_sampler_chain_n(chain) : 0;
    for (int32_t i = 0; i < n; i++) {
        first = llama_sampler_chain_get(chain, i);
        const char * name = first->iface->name ? llama_sampler_name(first) : "";  // a custom sampler may have none
        if (name[0] == '?') {
            continue;
        }
        if (std::strcmp(name, "greedy") == 0 && i + 1 == n) {
            return Start::GREEDY;
        }
        return std::strcmp(name, "top-k") == 0 ? Start::TOP_K : Start::ANYTHING;
    }
    return Start::ANYTHING;
}

// Returns k of a top-k sampler, MAX_TOP_K + 1 if it is larger. The sampler truncates sorted candidates without reading
// them, so empty ones suffice.
int32_t kept_by(llama_sampler * top_k) {
    llama_token_data none[MAX_TOP_K + 1] = {};
    llama_token_data_array array = {none, MAX_TOP_K + 1, -1, true};
    llama_sampler_apply(top_k, &array);
    return (int32_t) array.size;
}

bool sampled_on_device(llama_context * ctx, int32_t row) {
    return llama_get_sampled_token_ith(ctx, row) != LLAMA_TOKEN_NULL || llama_get_sampled_probs_ith(ctx, row) ||
           llama_get_sampled_logits_ith(ctx, row);
}

bool is_grammar(const llama_sampler * sampler) {
    return sampler->iface->name && std::strcmp(llama_sampler_name(sampler), "grammar") == 0;
}

void apply_one(llama_sampler * sampler, llama_token_data_array & candidates) {
    llama_sampler_apply(sampler, &candidates);
    if (is_grammar(sampler)) {
        require_allowed(candidates);
    }
}

llama_token chosen(llama_sampler * chain, std::vector<llama_token_data> & candidates) {
    llama_token_data_array array = {candidates.data(), candidates.size(), -1, false};
    apply(chain, array);
    if (array.selected < 0 || array.selected >= (int64_t) array.size) {
        throw Error(EAGLE_ERR_ARGUMENT, "the sampler chain chooses no token: end it with dist or greedy");
    }
    return array.data[array.selected].id;
}

int64_t n_vocab_of(const llama_context * ctx) {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
}

const float * logits_of(llama_context * ctx, int32_t row) {
    const float * logits = llama_get_logits_ith(ctx, row);
    if (!logits) {
        throw Error(EAGLE_ERR_ARGUMENT, format("the last decode has no logits in row %d", row));
    }
    return logits;
}

// Returns the number of tokens before the next one; -1 if the context has several sequences.
int32_t n_past_of(llama_context * ctx) {
    llama_memory_t memory = llama_get_memory(ctx);
    int32_t found = -1;
    for (llama_seq_id seq = 0; memory && seq < (llama_seq_id) llama_n_seq_max(ctx); seq++) {
        if (const llama_pos last = llama_memory_seq_pos_max(memory, seq); last >= 0) {
            if (found >= 0) {
                return -1;
            }
            found = last + 1;
        }
    }
    return found;
}

[[noreturn]] void fail_without_numbers(llama_context * ctx, const char * what) {
    char type[128] = "";
    llama_model_desc(llama_get_model(ctx), type, sizeof type);
    const int32_t n_past = n_past_of(ctx);
    const std::string place = n_past < 0 ? "" : format(" at token %d", n_past);
    throw Error(EAGLE_ERR_NUMBERS, format("the model computes no numbers%s (%s): damaged file, or an overflow in %s",
                                          place.c_str(), what, type));
}

// Throws if `top`, the largest of n logits, is not finite, or if all are equal to it.
void require_maximum(llama_context * ctx, const float * logits, int64_t n, float top) {
    if (!std::isfinite(top)) {
        fail_without_numbers(ctx, "the largest logit is not finite");
    }
    if (n > 1 && std::none_of(logits, logits + n, [top](float logit) { return logit < top; })) {
        fail_without_numbers(ctx, "all logits are equal");
    }
}

void require_numbers(llama_context * ctx, const float * logits, int64_t n) {
    int n_wrong = 0;  // a sum without a branch is vectorized
    for (int64_t i = 0; i < n; i++) {
        n_wrong += !(logits[i] <= FLT_MAX);
    }
    if (n_wrong > 0) {
        fail_without_numbers(ctx, "logits are NaN or infinite");
    }
    if (n > 1 && std::all_of(logits, logits + n, [&](float logit) { return logit == logits[0]; })) {
        fail_without_numbers(ctx, "all logits are equal");
    }
}

bool chosen_on_device(llama_context * ctx, int32_t row, Choice & choice) {
    llama_synchronize(ctx);  // as llama_get_logits_ith does; llama.cpp's timing of the decode needs it
    return ctx->device_logits.choice(row, choice);
}

}  // namespace

void top_candidates(const float * logits, int64_t n, int32_t k, std::vector<llama_token_data> & out) {
    out.resize(k);
    for (int64_t i = 0; i < k; i++) {
        out[i] = {(llama_token) i, logits[i], 0.0f};
    }
    if (k == n) {
        return;
    }
    std::priority_queue<float, std::vector<float>, std::greater<float>> largest(
        {}, {logits, logits + k});  // the smallest is on top
    for (int64_t begin = k; begin < n; begin += BLOCK) {
        const int64_t end = std::min(n, begin + BLOCK);
        if (maximum(logits + begin, end - begin) <= largest.top()) {
            continue;
        }
        for (int64_t i = begin; i < end; i++) {
            if (logits[i] > largest.top()) {
                out.push_back({(llama_token) i, logits[i], 0.0f});
                largest.pop();
                largest.push(logits[i]);
            }
        }
    }
}

void require_numbers(llama_context * ctx, int32_t row) {
    if (!sampled_on_device(ctx, row)) {
        require_numbers(ctx, logits_of(ctx, row), n_vocab_of(ctx));
    }
}

llama_token greedy(llama_context * ctx, int32_t row) {
    Choice choice;
    if (chosen_on_device(ctx, row, choice)) {
        return choice.ids[0];
    }
    const float * logits = logits_of(ctx, row);
    const int64_t id = first_maximum(logits, n_vocab_of(ctx));
    require_maximum(ctx, logits, n_vocab_of(ctx), logits[id]);
    return (llama_token) id;
}

Choice choose(llama_context * ctx, int32_t row) {
    Choice choice;
    if (!chosen_on_device(ctx, row, choice)) {
        const float * logits = logits_of(ctx, row);
        choice = choose(logits, n_vocab_of(ctx));
        require_maximum(ctx, logits, n_vocab_of(ctx), logits[choice.ids[0]]);
    }
    return choice;
}

bool few_candidates(llama_context * ctx, llama_sampler * chain, int32_t row, std::vector<llama_token_data> & out) {
    llama_sampler * first = nullptr;
    const int64_t n_vocab = n_vocab_of(ctx);
    const int32_t k = start_of(chain, first) == Start::TOP_K ? kept_by(first) : 0;
    if (k <= 0 || k > MAX_TOP_K || k >= n_vocab || sampled_on_device(ctx, row)) {
        return false;
    }
    top_candidates(logits_of(ctx, row), n_vocab, k, out);
    return true;
}

void apply(llama_sampler * sampler, llama_token_data_array & candidates) {
    if (!llama_sampler_chain_get(sampler, -1)) {
        apply_one(sampler, candidates);
        return;
    }
    const int32_t n = llama_sampler_chain_n(sampler);
    for (int32_t i = 0; i < n; i++) {
        llama_sampler * part = llama_sampler_chain_get(sampler, i);
        if (part->iface->apply) {
            apply_one(part, candidates);
        }
    }
}

llama_token sample(llama_context * ctx, llama_sampler * chain, int32_t row) {
    if (sampled_on_device(ctx, row)) {
        return llama_sampler_sample(chain, ctx, row);
    }
    llama_sampler * first = nullptr;
    llama_token id;
    if (start_of(chain, first) == Start::GREEDY) {
        id = greedy(ctx, row);
    } else {
        require_numbers(ctx, row);
        std::vector<llama_token_data> candidates;
        if (!few_candidates(ctx, chain, row, candidates)) {
            top_candidates(logits_of(ctx, row), n_vocab_of(ctx), (int32_t) n_vocab_of(ctx), candidates);
        }
        id = chosen(chain, candidates);
    }
    llama_sampler_accept(chain, id);
    return id;
}

}  // namespace eagle
