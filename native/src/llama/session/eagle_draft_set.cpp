#include "eagle_draft_set.h"

#include <algorithm>
#include <cstring>

#include "eagle_boundaries.h"
#include "eagle_error.h"
#include "eagle_session.h"
#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"

namespace eagle {

namespace {

constexpr llama_token UNKNOWN = -1;

// Goes back to n_past tokens, or on to there over a gap.
void go_to(SequenceDraft & draft, int32_t n_past) {
    if (n_past == 0 || n_past > draft.n_past()) {
        draft.resume(n_past);
    } else if (n_past < draft.n_past()) {
        draft.trim(n_past);
    }
}

// Rows from `first` on that are consecutive tokens of one sequence.
int32_t run_length(const llama_ubatch & ubatch, int32_t first) {
    int32_t n = 1;
    while (first + n < (int32_t) ubatch.n_tokens && ubatch.seq_id[first + n][0] == ubatch.seq_id[first][0] &&
           ubatch.pos[first + n] == ubatch.pos[first] + n) {
        n++;
    }
    return n;
}

}  // namespace

DraftSet::DraftSet(llama_context * ctx, const llama_model & draft, const eagle_session_params & params, int32_t n_seq)
    : ctx_(ctx), draft_(draft), params_(draft_params(ctx, params)), sequences_(n_seq) {
    if (ctx->eagle_listener) {
        throw Error(EAGLE_ERR_STATE, "the context feeds other drafts already: free them first");
    }
    sequence(0);
    try {
        for (int32_t id : model().states) {
            capture_on_device(*ctx_, id);
        }
    } catch (...) {
        release_boundaries();
        throw;
    }
    ctx_->eagle_listener = this;
}

DraftSet::~DraftSet() {
    ctx_->eagle_listener = nullptr;
    release_boundaries();
}

void DraftSet::release_boundaries() {
    for (int32_t id : model().states) {
        release_on_device(*ctx_, id);
    }
}

DraftSet::Sequence & DraftSet::sequence(llama_seq_id seq) {
    Sequence & s = sequences_[seq];
    if (!s.draft) {
        s.draft = std::make_unique<SequenceDraft>(draft_, *ctx_, params_);
    }
    return s;
}

// A draft that fails must not take the target's decode with it: its sequences begin anew after a gap.
void DraftSet::decoded(const llama_ubatch & ubatch) {
    try {
        append_all(ubatch);
    } catch (const std::exception & error) {
        if (!warned_) {
            LLAMA_LOG_WARN("%s: the draft does not see these tokens: %s\n", __func__, error.what());
        }
        warned_ = true;
    }
}

void DraftSet::append_all(const llama_ubatch & ubatch) {
    if (!ubatch.token || ubatch.embd) {
        return;
    }
    ggml_backend_sched_synchronize(ctx_->get_sched());
    std::vector<ggml_tensor *> states;
    for (int32_t id : model().states) {
        states.push_back(boundary_on_device(*ctx_, id, (int32_t) ubatch.n_tokens));
    }
    int32_t n;
    for (int32_t i = 0; i < (int32_t) ubatch.n_tokens; i += n) {
        n = run_length(ubatch, i);
        const llama_seq_id seq = ubatch.seq_id[i][0];
        if (seq >= 0 && seq < n_seq()) {
            append({seq, ubatch.pos[i], ubatch.token + i, i, n}, states);
        }
    }
}

void DraftSet::append(const Run & run, const std::vector<ggml_tensor *> & states) {
    Sequence & s = sequence(run.seq);
    go_to(*s.draft, run.pos);
    try {
        s.draft->stage(states, run.first, run.n);
        s.draft->keep(run.tokens, run.n);
    } catch (...) {
        s.draft->resume(run.pos + run.n);
        throw;
    }
    s.text.resize(std::max<size_t>(s.text.size(), run.pos + run.n), UNKNOWN);
    std::copy_n(run.tokens, run.n, s.text.begin() + run.pos);
}

// The draft sees its memory from where text and tokens agree up to the end.
void DraftSet::set_text(llama_seq_id seq, const llama_token * tokens, int32_t n) {
    Sequence & s = sequences_[seq];
    if (!s.draft) {
        return;
    }
    int32_t first = s.draft->n_past();
    while (first > 0 && first <= n && s.text[first - 1] == tokens[first - 1]) {
        first--;
    }
    s.draft->see_from(first);
}

void DraftSet::propose(eagle_draft_request & request, float p_min) {
    Sequence & s = sequences_[request.seq];
    if (!s.draft || request.pos > s.draft->n_past()) {
        return;
    }
    go_to(*s.draft, request.pos);
    const int32_t n_max = std::min(request.n_max, s.draft->room());
    if (n_max <= 0) {
        return;
    }
    try {
        request.n_out = s.draft->draft(request.id_last, n_max, p_min, request.ids, nullptr);
    } catch (...) {
        s.draft->resume(request.pos);
        throw;
    }
}

// The text, then the draft's own state.
int64_t DraftSet::state_size(llama_seq_id seq, int32_t n_past) {
    Sequence & s = sequences_[seq];
    if (!s.draft || n_past <= 0 || n_past > s.draft->n_past()) {
        return 0;
    }
    go_to(*s.draft, n_past);
    return n_past * (int64_t) sizeof(llama_token) + s.draft->state_size();
}

void DraftSet::save_state(llama_seq_id seq, char * data, int64_t size) const {
    const Sequence & s = sequences_[seq];
    const int64_t n_text = s.draft ? s.draft->n_past() * (int64_t) sizeof(llama_token) : 0;
    if (!s.draft || size != n_text + s.draft->state_size()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("sequence %d has no state of %lld bytes", seq, (long long) size));
    }
    std::memcpy(data, s.text.data(), n_text);
    s.draft->save_state(data + n_text);
}

void DraftSet::load_state(llama_seq_id seq, const char * data, int64_t size, int32_t n_past) {
    Sequence & s = sequence(seq);
    const int64_t n_text = n_past * (int64_t) sizeof(llama_token);
    s.draft->resume(n_past);
    if (!data) {
        return;
    }
    if (size <= n_text) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, format("%lld bytes are no state of %d tokens", (long long) size, n_past));
    }
    s.draft->load_state(data + n_text, size - n_text, n_past);
    s.text.resize(n_past);
    std::memcpy(s.text.data(), data, n_text);
}

}  // namespace eagle
