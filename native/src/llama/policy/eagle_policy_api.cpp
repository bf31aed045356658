// The C functions of eagle_policy.h. What they do is in eagle_draft_policy.cpp.

#include <algorithm>

#include "eagle_arguments.h"
#include "eagle_draft_policy.h"

struct eagle_policy {
    eagle::DraftPolicy impl;
};

namespace {

using eagle::Error;
using eagle::format;
using eagle::guarded;
using eagle::require;

constexpr int32_t LONGEST = 1024;  // tokens of a draft: no batch holds more

void require_sequence(const eagle_policy * policy, llama_seq_id seq) {
    require(policy, "policy");
    if (seq < 0 || seq >= policy->impl.n_seq()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("sequence %d of %d", seq, policy->impl.n_seq()));
    }
}

// Checks the number of sequences of a round.
void require_sequences(const eagle_policy * policy, int32_t n) {
    require(policy, "policy");
    if (n < 1 || n > policy->impl.n_seq()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("a round of %d sequences, there are %d", n, policy->impl.n_seq()));
    }
}

}  // namespace

struct eagle_policy_params eagle_policy_default_params(void) {
    eagle_policy_params params{};
    params.struct_size = sizeof params;
    params.n_seq = 1;
    params.n_draft_max = 16;
    return params;
}

int32_t eagle_policy_new(const struct eagle_policy_params * given, eagle_policy ** out) {
    return guarded("eagle_policy_new", [&] {
        require(given, "params");
        require(out, "out");
        *out = nullptr;
        eagle_policy_params params = eagle_policy_default_params();
        std::copy_n((const char *) given, std::min(given->struct_size, sizeof params), (char *) &params);
        if (params.n_seq < 1 || params.n_draft_max < 1 || params.n_draft_max > LONGEST || params.n_draft < 0 ||
            params.n_draft > params.n_draft_max) {
            throw Error(EAGLE_ERR_ARGUMENT, format("%d sequences, drafts of %d up to %d tokens", params.n_seq,
                                                   params.n_draft, params.n_draft_max));
        }
        *out = new eagle_policy{eagle::DraftPolicy(params)};
    });
}

void eagle_policy_free(eagle_policy * policy) {
    delete policy;
}

int32_t eagle_policy_begin(eagle_policy * policy, llama_seq_id seq) {
    return guarded("eagle_policy_begin", [&] {
        require_sequence(policy, seq);
        policy->impl.begin(seq);
    });
}

bool eagle_policy_wants_offer(const eagle_policy * policy) {
    return policy && policy->impl.wants_offer();
}

int32_t eagle_policy_offer(eagle_policy * policy, llama_seq_id seq, const llama_token * ids, int32_t n, int32_t n_match,
                           double ms) {
    return guarded("eagle_policy_offer", [&] {
        require_sequence(policy, seq);
        policy->impl.offer(seq, ids, n, n_match, ms);
    });
}

int32_t eagle_policy_choose(eagle_policy * policy, struct eagle_policy_draft * drafts, int32_t n) {
    return guarded("eagle_policy_choose", [&] {
        require_sequences(policy, n);
        require(drafts, "drafts");
        for (int32_t i = 0; i < n; i++) {
            require_sequence(policy, drafts[i].seq);
        }
        policy->impl.choose(drafts, n);
    });
}

int32_t eagle_policy_drafted(eagle_policy * policy, int32_t n_seq, int32_t n_tokens, double ms) {
    return guarded("eagle_policy_drafted", [&] {
        require_sequences(policy, n_seq);
        policy->impl.drafted(n_seq, n_tokens, ms);
    });
}

int32_t eagle_policy_decoded(eagle_policy * policy, int32_t n_seq, int32_t n_rows, double ms) {
    return guarded("eagle_policy_decoded", [&] {
        require_sequences(policy, n_seq);
        policy->impl.decoded(n_seq, n_rows, ms);
    });
}

int32_t eagle_policy_verified(eagle_policy * policy, llama_seq_id seq, int32_t n_draft, int32_t n_accepted) {
    return guarded("eagle_policy_verified", [&] {
        require_sequence(policy, seq);
        policy->impl.verified(seq, n_draft, n_accepted);
    });
}

int32_t eagle_policy_text(eagle_policy * policy, llama_seq_id seq, const llama_token * ids, int32_t n) {
    return guarded("eagle_policy_text", [&] {
        require_sequence(policy, seq);
        policy->impl.text(seq, ids, n);
    });
}

int32_t eagle_policy_observe(eagle_policy * policy, const struct eagle_policy_round * round) {
    return guarded("eagle_policy_observe", [&] {
        require(round, "round");
        require_sequence(policy, round->seq);
        policy->impl.drafted(1, round->n_model, round->draft_ms);
        policy->impl.decoded(1, round->n_draft + 1, round->verify_ms);
        policy->impl.verified(round->seq, round->n_draft, round->n_accepted);
    });
}
