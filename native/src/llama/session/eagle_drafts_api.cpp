// C functions of eagle_drafts.h: argument checks, errors to status codes.

#include "eagle_arguments.h"
#include "eagle_draft_kinds.h"
#include "eagle_draft_set.h"

struct eagle_drafts {
    eagle::DraftSet impl;
};

namespace {

using eagle::Error;
using eagle::format;
using eagle::guarded;
using eagle::require;
using eagle::require_in_vocabulary;

void require_sequence(const eagle_drafts * drafts, llama_seq_id seq) {
    require(drafts, "drafts");
    if (seq < 0 || seq >= drafts->impl.n_seq()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("sequence %d of %d", seq, drafts->impl.n_seq()));
    }
}

}  // namespace

bool eagle_drafts_supports(const struct llama_model * model) {
    return model && eagle::is_known_draft(*model);
}

int32_t eagle_drafts_new(struct llama_context * ctx_tgt, const struct llama_model * model_dft,
                         const struct eagle_session_params * given, int32_t n_seq, eagle_drafts ** out) {
    return guarded("eagle_drafts_new", [&] {
        require(ctx_tgt, "ctx_tgt");
        require(model_dft, "model_dft");
        require(out, "out");
        *out = nullptr;
        if (n_seq < 1 || n_seq > (int32_t) llama_n_seq_max(ctx_tgt)) {
            throw Error(EAGLE_ERR_ARGUMENT,
                        format("%d sequences, the context has %u", n_seq, llama_n_seq_max(ctx_tgt)));
        }
        const eagle_session_params params = eagle::merge(given, *llama_get_model(ctx_tgt));
        *out = new eagle_drafts{{ctx_tgt, *model_dft, params, n_seq}};
    });
}

void eagle_drafts_free(eagle_drafts * drafts) {
    delete drafts;
}

const char * eagle_drafts_kind(const eagle_drafts * drafts) {
    return drafts ? drafts->impl.drafter().kind() : "";
}

int32_t eagle_drafts_text(eagle_drafts * drafts, llama_seq_id seq, const llama_token * tokens, int32_t n) {
    return guarded("eagle_drafts_text", [&] {
        require_sequence(drafts, seq);
        require(tokens, "tokens");
        drafts->impl.set_text(seq, tokens, n);
    });
}

int32_t eagle_drafts_propose(eagle_drafts * drafts, struct eagle_draft_request * requests, int32_t n, float p_min) {
    return guarded("eagle_drafts_propose", [&] {
        require(drafts, "drafts");
        require(requests, "requests");
        for (int32_t i = 0; i < n; i++) {
            require_sequence(drafts, requests[i].seq);
            require_in_vocabulary(&requests[i].id_last, 1, drafts->impl.n_vocab());
            requests[i].n_out = 0;
        }
        drafts->impl.propose(requests, n, p_min);
    });
}

int64_t eagle_drafts_state_size(eagle_drafts * drafts, llama_seq_id seq, llama_pos pos) {
    int64_t size = 0;
    guarded("eagle_drafts_state_size", [&] {
        require_sequence(drafts, seq);
        size = drafts->impl.state_size(seq, pos);
    });
    return size;
}

int32_t eagle_drafts_state_save(eagle_drafts * drafts, llama_seq_id seq, void * data, int64_t size) {
    return guarded("eagle_drafts_state_save", [&] {
        require_sequence(drafts, seq);
        require(data, "data");
        drafts->impl.save_state(seq, (char *) data, size);
    });
}

int32_t eagle_drafts_state_load(eagle_drafts * drafts, llama_seq_id seq, const void * data, int64_t size,
                                llama_pos pos) {
    return guarded("eagle_drafts_state_load", [&] {
        require_sequence(drafts, seq);
        if (pos < 0 || pos > drafts->impl.n_ctx()) {
            throw Error(EAGLE_ERR_ARGUMENT, format("a sequence that ends at position %d", pos));
        }
        drafts->impl.load_state(seq, (const char *) data, size, pos);
    });
}
