// C functions of eagle.h, eagle_sampler.h and eagle_testing.h: argument checks, timing, errors to status codes.

#include <algorithm>

#include "eagle.h"
#include "eagle_arguments.h"
#include "eagle_sample.h"
#include "eagle_sampler.h"
#include "eagle_session.h"
#include "eagle_testing.h"

struct eagle_session {
    eagle::Session impl;
};

namespace {

using eagle::Error;
using eagle::format;
using eagle::guarded;
using eagle::merge;
using eagle::require;
using eagle::require_in_vocabulary;
using eagle::Session;

class Timer {
  public:
    explicit Timer(double & total_ms) : total_ms_(total_ms), start_us_(ggml_time_us()) {}
    ~Timer() { total_ms_ += (double) (ggml_time_us() - start_us_) / 1000.0; }

  private:
    double & total_ms_;
    int64_t start_us_;
};

void require_ids(const eagle_session * session, const llama_token * ids, int32_t n) {
    require_in_vocabulary(ids, n, session->impl.n_vocab());
}

// Null without a draft.
const eagle::Drafter * drafter_of(const eagle_session * session) {
    return session ? session->impl.drafter() : nullptr;
}

const eagle::Drafter & require_draft(const eagle_session * session) {
    require(session, "session");
    if (!session->impl.drafter()) {
        throw Error(EAGLE_ERR_STATE, "the session has no draft");
    }
    return *session->impl.drafter();
}

}  // namespace

struct eagle_session_params eagle_session_default_params(void) {
    eagle_session_params params = {};
    params.struct_size = sizeof params;
    params.n_draft_max = 16;
    return params;
}

int32_t eagle_session_new(struct llama_context * ctx_tgt, const struct llama_model * model_dft,
                          const struct eagle_session_params * given, eagle_session ** out) {
    return guarded("eagle_session_new", [&] {
        require(ctx_tgt, "ctx_tgt");
        require(out, "out");
        *out = nullptr;
        const int32_t min_draft_max = model_dft ? 1 : 0;
        *out = new eagle_session{{ctx_tgt, model_dft, merge(given, *llama_get_model(ctx_tgt), min_draft_max)}};
    });
}

void eagle_session_free(eagle_session * session) {
    delete session;
}

const char * eagle_draft_kind(const eagle_session * session) {
    const eagle::Drafter * drafter = drafter_of(session);
    return drafter ? drafter->kind() : "";
}

const char * eagle_draft_device(const eagle_session * session) {
    const eagle::Drafter * drafter = drafter_of(session);
    return drafter ? drafter->device() : "";
}

const char * eagle_draft_notice(const eagle_session * session) {
    const eagle::Drafter * drafter = drafter_of(session);
    return drafter ? drafter->notice() : "";
}

double eagle_draft_bytes_read(const eagle_session * session) {
    const eagle::Drafter * drafter = drafter_of(session);
    return drafter ? drafter->bytes_read() : 0.0;
}

int32_t eagle_reset(eagle_session * session) {
    return guarded("eagle_reset", [&] {
        require(session, "session");
        session->impl.reset();
    });
}

int32_t eagle_n_past(const eagle_session * session) {
    return session ? session->impl.n_past() : 0;
}

int32_t eagle_n_draft_room(const eagle_session * session) {
    return session ? session->impl.n_draft_room() : 0;
}

int32_t eagle_eval(eagle_session * session, const llama_token * tokens, int32_t n) {
    return guarded("eagle_eval", [&] {
        require(session, "session");
        require_ids(session, tokens, n);
        Timer timer(session->impl.timings.eval_ms);
        session->impl.eval(tokens, n);
    });
}

int32_t eagle_eval_embeddings(eagle_session * session, const float * rows, int32_t n, const llama_pos * positions,
                              int32_t n_positions) {
    return guarded("eagle_eval_embeddings", [&] {
        require(session, "session");
        require(rows, "rows");
        require(positions, "positions");
        if (n <= 0) {
            throw Error(EAGLE_ERR_ARGUMENT, format("%d rows", n));
        }
        Timer timer(session->impl.timings.eval_ms);
        session->impl.eval_embeddings({rows, n, positions, n_positions});
    });
}

int32_t eagle_trim(eagle_session * session, int32_t n_past) {
    return guarded("eagle_trim", [&] {
        require(session, "session");
        if (n_past < 0) {
            throw Error(EAGLE_ERR_ARGUMENT, format("cannot keep %d tokens", n_past));
        }
        session->impl.trim(n_past);
    });
}

int32_t eagle_draft(eagle_session * session, llama_token id_last, int32_t n_max, float p_min, llama_token * ids,
                    float * probs, int32_t * n_out) {
    return guarded("eagle_draft", [&] {
        require_draft(session);
        require(n_out, "n_out");
        *n_out = 0;
        require_ids(session, &id_last, 1);
        if (n_max > 0) {
            require(ids, "ids");
        }
        Timer timer(session->impl.timings.draft_ms);
        *n_out = session->impl.draft(id_last, n_max, p_min, ids, probs);
    });
}

int32_t eagle_verify(eagle_session * session, const llama_token * ids, int32_t n) {
    return guarded("eagle_verify", [&] {
        require(session, "session");
        require_ids(session, ids, n);
        Timer timer(session->impl.timings.verify_ms);
        session->impl.verify(ids, n);
    });
}

int32_t eagle_sample(struct llama_context * ctx, struct llama_sampler * sampler, int32_t row, llama_token * id) {
    return guarded("eagle_sample", [&] {
        require(ctx, "ctx");
        require(sampler, "sampler");
        require(id, "id");
        *id = eagle::sample(ctx, sampler, row);
    });
}

int32_t eagle_require_numbers(struct llama_context * ctx, int32_t row) {
    return guarded("eagle_require_numbers", [&] {
        require(ctx, "ctx");
        eagle::require_numbers(ctx, row);
    });
}

int32_t eagle_sampler_apply(struct llama_sampler * sampler, llama_token_data_array * candidates) {
    return guarded("eagle_sampler_apply", [&] {
        require(sampler, "sampler");
        require(candidates, "candidates");
        eagle::apply(sampler, *candidates);
    });
}

int32_t eagle_sampler_accept(struct llama_sampler * sampler, llama_token id) {
    return guarded("eagle_sampler_accept", [&] {
        require(sampler, "sampler");
        llama_sampler_accept(sampler, id);
    });
}

int32_t eagle_choice(struct llama_context * ctx, int32_t row, llama_token * ids, float * gap) {
    return guarded("eagle_choice", [&] {
        require(ctx, "ctx");
        require(ids, "ids");
        require(gap, "gap");
        const eagle::Choice choice = eagle::choose(ctx, row);
        std::copy_n(choice.ids, 2, ids);
        *gap = choice.gap;
    });
}

int32_t eagle_set_draft_kv_type(int32_t type) {
    return guarded("eagle_set_draft_kv_type", [&] {
        if (type != GGML_TYPE_F16 && type != GGML_TYPE_F32) {
            throw Error(EAGLE_ERR_ARGUMENT, "the type must be F16 or F32");
        }
        eagle::draft_kv_type = (ggml_type) type;
    });
}

int32_t eagle_draft_window(const eagle_session * session) {
    const eagle::Drafter * drafter = drafter_of(session);
    return drafter ? drafter->window() : 0;
}

int32_t eagle_fix_draft_window(eagle_session * session, int32_t n) {
    return guarded("eagle_fix_draft_window", [&] {
        require_draft(session);
        if (n < 1) {
            throw Error(EAGLE_ERR_ARGUMENT, format("a window of %d rows", n));
        }
        session->impl.drafter()->fix_window(n);
    });
}

int32_t eagle_commit(eagle_session * session, int32_t n_kept) {
    return guarded("eagle_commit", [&] {
        require(session, "session");
        Timer timer(session->impl.timings.commit_ms);
        session->impl.commit(n_kept);
    });
}

int64_t eagle_state_size(const eagle_session * session) {
    return session ? session->impl.state_size() : 0;
}

int32_t eagle_state_save(const eagle_session * session, void * data, int64_t size) {
    return guarded("eagle_state_save", [&] {
        require(session, "session");
        require(data, "data");
        session->impl.save_state((char *) data, size);
    });
}

int32_t eagle_state_load(eagle_session * session, const void * data, int64_t size, int32_t n_past) {
    return guarded("eagle_state_load", [&] {
        require(session, "session");
        if (size < 0 || (size > 0 && !data)) {
            throw Error(EAGLE_ERR_ARGUMENT, format("%lld bytes of state at %p", (long long) size, data));
        }
        session->impl.load_state((const char *) data, size, n_past);
    });
}

int32_t eagle_draft_step(const eagle_session * session, int32_t step, float * logits, float * hidden) {
    return guarded("eagle_draft_step", [&] { require_draft(session).read_step(step, logits, hidden); });
}

int32_t eagle_n_vocab_draft(const eagle_session * session) {
    const eagle::Drafter * drafter = drafter_of(session);
    return drafter ? (int32_t) drafter->n_vocab_draft() : 0;
}

int32_t eagle_draft_ids(const eagle_session * session, llama_token * ids) {
    return guarded("eagle_draft_ids", [&] {
        const eagle::Drafter & drafter = require_draft(session);
        require(ids, "ids");
        for (int32_t i = 0; i < drafter.n_vocab_draft(); i++) {
            ids[i] = drafter.target_id(i);
        }
    });
}

int32_t eagle_note_used_tokens(eagle_session * session, const llama_token * ids, int32_t n) {
    return guarded("eagle_note_used_tokens", [&] {
        require(session, "session");
        require_ids(session, ids, n);
        session->impl.note_used_tokens(ids, n);
    });
}

struct eagle_timings eagle_get_timings(const eagle_session * session) {
    if (!session) {
        return {};
    }
    eagle_timings timings = session->impl.timings;
    timings.n_graphs = drafter_of(session) ? drafter_of(session)->n_graphs() : 0;
    return timings;
}
