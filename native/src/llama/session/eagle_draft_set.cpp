#include "eagle_draft_set.h"

#include <algorithm>
#include <cstdint>
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
    : ctx_(ctx), params_(draft_params(ctx, params)), engine_(draft, *ctx, params_), sequences_(n_seq) {
    if (ctx->eagle_listener) {
        throw Error(EAGLE_ERR_STATE, "the context feeds other drafts already: free them first");
    }
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
        const int32_t seq_of_engine = n_engine_ == 0 ? 0 : engine_.add_sequence();
        n_engine_++;
        s.draft = std::make_unique<SequenceDraft>(engine_, seq_of_engine);
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

// Those whose sequences have states to draft from, and room; n_max is what there is room for.
std::vector<eagle_draft_request *> DraftSet::drafting(eagle_draft_request * requests, int32_t n) {
    std::vector<eagle_draft_request *> found;
    for (eagle_draft_request * r = requests; r < requests + n; r++) {
        Sequence & s = sequences_[r->seq];
        if (!s.draft || r->pos > s.draft->n_past()) {
            continue;
        }
        go_to(*s.draft, r->pos);
        r->n_max = std::min(r->n_max, s.draft->room());
        if (r->n_max > 0) {
            found.push_back(r);
        }
    }
    return found;
}

void DraftSet::propose(eagle_draft_request * requests, int32_t n, float p_min) {
    const std::vector<eagle_draft_request *> asked = drafting(requests, n);
    try {
        draft_all(asked, p_min);
    } catch (...) {
        for (const eagle_draft_request * r : asked) {
            sequences_[r->seq].draft->resume(r->pos);
        }
        throw;
    }
}

void DraftSet::draft_all(const std::vector<eagle_draft_request *> & asked, float p_min) {
    if (asked.empty()) {
        return;
    }
    int32_t n_steps = 0, room = INT32_MAX;
    for (const eagle_draft_request * r : asked) {
        n_steps = std::max(n_steps, r->n_max);
        room = std::min(room, sequences_[r->seq].draft->room());
    }
    n_steps = std::min(n_steps, room);
    std::vector<llama_token> ids(asked.size() * n_steps);
    std::vector<float> probs(ids.size());
    std::vector<DraftRows> parts;
    std::vector<DraftOut> out;
    for (size_t i = 0; i < asked.size(); i++) {
        parts.push_back(sequences_[asked[i]->seq].draft->rows_to_draft(asked[i]->id_last));
        out.push_back({&ids[i * n_steps], &probs[i * n_steps]});
    }
    const int32_t n_drafted = engine_.draft(parts, n_steps, p_min, out);
    for (size_t i = 0; i < asked.size(); i++) {
        eagle_draft_request & r = *asked[i];
        const int32_t n_good = sequences_[r.seq].draft->drafted(out[i].probs, n_drafted, p_min);
        r.n_out = std::min(n_good, r.n_max);
        std::copy_n(out[i].ids, r.n_out, r.ids);
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
