#include "eagle_session.h"

#include <algorithm>
#include <cstring>

#include "eagle_error.h"
#include "eagle_features.h"
#include "eagle_sample.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

namespace eagle {

namespace {

// Rows that wait for the next draft before they are taken in on their own: plain decode stretches stay cheap.
constexpr int32_t MAX_PENDING = 64;

DraftParams engine_params(const llama_context * ctx, const eagle_session_params & params) {
    DraftParams p = {};
    p.n_ctx = params.n_ctx_draft > 0 ? params.n_ctx_draft : (int32_t) llama_n_ctx(ctx);
    p.n_threads = params.n_threads > 0 ? params.n_threads : llama_n_threads(const_cast<llama_context *>(ctx));
    p.type_kv = (ggml_type) params.type_kv;
    return p;
}

}  // namespace

Session::Session(llama_context * ctx, const llama_model & draft, const eagle_session_params & params)
    : ctx_(ctx),
      n_draft_max_(params.n_draft_max),
      n_ctx_((int32_t) llama_n_ctx_seq(ctx)),
      n_batch_((int32_t) llama_n_batch(ctx)),
      engine_(draft, *llama_get_model(ctx), engine_params(ctx, params)) {
    const llama_model * target = llama_get_model(ctx);
    const DraftModel & model = engine_.model();
    width_ = model.n_aux * model.n_embd_tgt;
    recurrent_ = llama_model_is_recurrent(target) || llama_model_is_hybrid(target);
    if (recurrent_ && (int32_t) llama_n_rs_seq(ctx) < n_draft_max_) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("drafts of %d tokens need a context with n_rs_seq >= %d, this one has %u", n_draft_max_,
                           n_draft_max_, llama_n_rs_seq(ctx)));
    }
    if (n_draft_max_ + 1 > (int32_t) std::min(llama_n_batch(ctx), llama_n_ubatch(ctx))) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("drafts of %d tokens need n_batch and n_ubatch >= %d, not %u and %u", n_draft_max_,
                           n_draft_max_ + 1, llama_n_batch(ctx), llama_n_ubatch(ctx)));
    }
    for (int32_t id : model.aux_layer_ids) {
        if (eagle_capture_layer(ctx_, id, true) != EAGLE_OK) {
            throw Error(EAGLE_ERR_INCOMPATIBLE, eagle_last_error());
        }
    }
    ctx_->device_logits.wanted = true;
}

Session::~Session() {
    ctx_->device_logits.wanted = false;
    for (int32_t id : engine_.model().aux_layer_ids) {
        llama_set_embeddings_layer_inp(ctx_, id, false);
    }
}

void Session::reset() {
    llama_memory_clear(llama_get_memory(ctx_), false);
    n_past_ = 0;
    broken_ = false;
    round_.clear();
    pending_ = {};
    engine_.forget_slots(0);
}

void Session::require_ready() const {
    if (broken_) {
        throw Error(EAGLE_ERR_STATE, "an earlier decode failed: reset the session and evaluate the prompt again");
    }
    if (!round_.empty()) {
        throw Error(EAGLE_ERR_STATE, "a round is pending: commit it first");
    }
}

void Session::require_room(int32_t n) const {
    if (n_past_ + n > n_ctx_) {
        throw Error(EAGLE_ERR_CONTEXT_FULL,
                    format("%d tokens do not fit: the context holds %d and has %d", n, n_ctx_, n_past_));
    }
}

// The last drafted token is verified at n_past + D, and drafted at the draft's position n_past + D - 2.
int32_t Session::n_draft_room() const {
    const int32_t target_room = n_ctx_ - n_past_ - 1;
    const int32_t draft_room = (int32_t) std::min<int64_t>(engine_.n_ctx(), engine_.model().n_ctx_train) - n_past_ + 1;
    const bool continuous = pending_.n > 0 && pending_.pos + pending_.n == n_past_;
    return continuous ? std::clamp(std::min(target_room, draft_room), 0, n_draft_max_) : 0;
}

void Session::decode(const llama_token * tokens, int32_t n, bool all_logits) {
    std::vector<llama_token> ids(tokens, tokens + n);
    std::vector<llama_pos> pos(n);
    std::vector<int32_t> n_seq(n, 1);
    std::vector<int8_t> logits(n, all_logits);
    llama_seq_id zero = 0;
    std::vector<llama_seq_id *> seq(n, &zero);
    for (int32_t i = 0; i < n; i++) {
        pos[i] = n_past_ + i;
    }
    logits[n - 1] = true;
    const int32_t rc =
        llama_decode(ctx_, {n, ids.data(), nullptr, pos.data(), n_seq.data(), seq.data(), logits.data()});
    if (rc == 0) {
        return;
    }
    if (rc == 1) {
        throw Error(EAGLE_ERR_CONTEXT_FULL, format("llama_decode found no room for %d tokens", n));
    }
    broken_ = true;
    throw Error(rc == 2 ? EAGLE_ERR_ABORTED : EAGLE_ERR_COMPUTE, format("llama_decode of %d tokens failed: %d", n, rc));
}

void Session::eval(const llama_token * tokens, int32_t n) {
    require_ready();
    require_room(n);
    while (n > 0) {
        const int32_t n_now = std::min(n, n_batch_);
        decode(tokens, n_now, false);
        append_pending(tokens, n_now);
        n_past_ += n_now;
        timings.n_eval += n_now;
        tokens += n_now;
        n -= n_now;
    }
}

// After a decode whose first n rows are kept: their features become pending, their tokens complete the rows before.
void Session::append_pending(const llama_token * tokens, int32_t n) {
    const DraftModel & model = engine_.model();
    if (pending_.pos + pending_.n != n_past_) {
        pending_ = {};
        pending_.pos = n_past_;
    }
    if (pending_.n > 0) {
        pending_.tokens.push_back(tokens[0]);
    }
    pending_.tokens.insert(pending_.tokens.end(), tokens + 1, tokens + n);
    pending_.features.resize((pending_.n + n) * width_);
    for (int64_t a = 0; a < model.n_aux; a++) {
        const float * layer = llama_get_embeddings_layer_inp(ctx_, model.aux_layer_ids[a]);
        for (int32_t i = 0; i < n; i++) {
            std::memcpy(&pending_.features[(pending_.n + i) * width_ + a * model.n_embd_tgt],
                        layer + i * model.n_embd_tgt, model.n_embd_tgt * sizeof(float));
        }
    }
    pending_.n += n;
    if (pending_.n > MAX_PENDING) {
        take_pending(pending_.n - 1);
    }
}

// The draft takes in the first n pending rows. Past its own memory it sleeps: nothing drafts there.
void Session::take_pending(int32_t n) {
    const int32_t n_take = (int32_t) std::clamp<int64_t>(engine_.n_ctx() - pending_.pos, 0, n);
    if (n_take > 0) {
        engine_.take({pending_.tokens.data(), pending_.features.data(), n_take, pending_.pos});
    }
    drop_pending(n);
}

void Session::drop_pending(int32_t n) {
    pending_.features.erase(pending_.features.begin(), pending_.features.begin() + n * width_);
    pending_.tokens.erase(pending_.tokens.begin(), pending_.tokens.begin() + n);
    pending_.pos += n;
    pending_.n -= n;
}

void Session::trim(int32_t n_past) {
    require_ready();
    if (n_past > n_past_) {
        throw Error(EAGLE_ERR_ARGUMENT, format("cannot keep %d tokens of %d", n_past, n_past_));
    }
    if (n_past == n_past_) {
        return;
    }
    if (n_past == 0) {
        return reset();
    }
    if (!llama_memory_seq_rm(llama_get_memory(ctx_), 0, n_past, -1)) {
        throw Error(EAGLE_ERR_STATE, format("the recurrent state cannot go back from %d to %d tokens: reset and "
                                            "evaluate again",
                                            n_past_, n_past));
    }
    n_past_ = n_past;
    engine_.forget_slots(std::min(n_past, engine_.first_slot()));
    const int32_t n_kept = std::max(0, n_past - pending_.pos);
    pending_.n = std::min(pending_.n, n_kept);
    pending_.features.resize(pending_.n * width_);
    pending_.tokens.resize(std::max(0, pending_.n - 1));
}

StateHeader Session::state_header() const {
    StateHeader header;
    header.n_past = n_past_;
    header.first_slot = engine_.first_slot();
    header.end_slot = (int32_t) std::min<int64_t>(pending_.pos, engine_.n_ctx());
    header.pos = pending_.pos;
    header.n = pending_.n;
    header.n_tokens = (int32_t) pending_.tokens.size();
    header.width = (int32_t) width_;
    return header;
}

int64_t Session::state_size(const StateHeader & header) const {
    return (int64_t) sizeof header + header.token_bytes() + header.feature_bytes() +
           engine_.slots_size(header.first_slot, header.end_slot);
}

int64_t Session::state_size() const {
    return state_size(state_header());
}

void Session::save_state(char * data, int64_t size) const {
    require_ready();
    const StateHeader header = state_header();
    if (size != state_size(header)) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("%lld bytes for a state of %lld", (long long) size, (long long) state_size(header)));
    }
    std::memcpy(data, &header, sizeof header);
    data += sizeof header;
    std::memcpy(data, pending_.tokens.data(), header.token_bytes());
    data += header.token_bytes();
    std::memcpy(data, pending_.features.data(), header.feature_bytes());
    engine_.save_slots(header.first_slot, header.end_slot, data + header.feature_bytes());
}

void Session::load_state(const char * data, int64_t size, int32_t n_past) {
    if (n_past < 0 || n_past > n_ctx_) {
        throw Error(EAGLE_ERR_ARGUMENT, format("%d tokens in a context of %d", n_past, n_ctx_));
    }
    StateHeader header;
    header.first_slot = header.pos = n_past;  // what the session is left with when there is no data
    if (data) {
        std::memcpy(&header, data, std::min<int64_t>(size, sizeof header));
        if (size < (int64_t) sizeof header || !header.is_sane(n_past, width_, engine_.n_ctx()) ||
            size != state_size(header)) {
            throw Error(EAGLE_ERR_INCOMPATIBLE,
                        format("not the state of a session with this draft and %d tokens", n_past));
        }
        data += sizeof header;
    }
    n_past_ = n_past;
    broken_ = false;
    round_.clear();
    pending_ = {};
    pending_.pos = header.pos;
    pending_.n = header.n;
    pending_.tokens.resize(header.n_tokens);
    pending_.features.resize(header.n * width_);
    engine_.forget_slots(header.first_slot);
    if (data) {
        std::memcpy(pending_.tokens.data(), data, header.token_bytes());
        data += header.token_bytes();
        std::memcpy(pending_.features.data(), data, header.feature_bytes());
        engine_.load_slots(header.first_slot, header.end_slot, data + header.feature_bytes());
    }
}

int32_t Session::draft(llama_token id_last, int32_t n_max, float p_min, llama_token * ids, float * probs) {
    require_ready();
    const int32_t n_steps = std::min(n_max, n_draft_room());
    if (n_steps <= 0) {
        return 0;
    }
    std::vector<float> own(n_steps);
    probs = probs ? probs : own.data();
    pending_.tokens.push_back(id_last);
    const int32_t n_drafted = engine_.draft(
        {pending_.tokens.data(), pending_.features.data(), pending_.n, pending_.pos}, n_steps, p_min, ids, probs);
    // The last row stays: only the commit tells whether id_last is really the token that follows it.
    pending_.tokens.pop_back();
    drop_pending(pending_.n - 1);
    float confidence = 1.0f;
    for (int32_t i = 0; i < n_drafted; i++) {
        confidence *= probs[i];
        if (confidence < p_min) {
            return i;
        }
    }
    return n_drafted;
}

void Session::verify(const llama_token * ids, int32_t n) {
    require_ready();
    require_room(n);
    if (n > n_draft_max_ + 1) {
        throw Error(EAGLE_ERR_ARGUMENT, format("a round of %d rows, but n_draft_max is %d", n, n_draft_max_));
    }
    decode(ids, n, true);
    round_.assign(ids, ids + n);
}

int32_t Session::accept(llama_sampler * sampler, llama_token * ids) {
    if (round_.empty()) {
        throw Error(EAGLE_ERR_STATE, "no round is pending: verify first");
    }
    const int32_t n = (int32_t) round_.size();
    for (int32_t row = 0; row < n; row++) {
        ids[row] = sampler ? sample(ctx_, sampler, row) : greedy(ctx_, row);
        if (row + 1 == n || ids[row] != round_[row + 1]) {
            return row + 1;
        }
    }
    return n;
}

void Session::commit(int32_t n_kept) {
    const int32_t n = (int32_t) round_.size();
    if (n == 0) {
        throw Error(EAGLE_ERR_STATE, "no round is pending: verify first");
    }
    if (n_kept < 0 || n_kept > n) {
        throw Error(EAGLE_ERR_ARGUMENT, format("cannot keep %d rows of a round of %d", n_kept, n));
    }
    if (n_kept < n && !llama_memory_seq_rm(llama_get_memory(ctx_), 0, n_past_ + n_kept, -1)) {
        broken_ = true;
        throw Error(EAGLE_ERR_STATE, format("the recurrent state cannot undo %d rows", n - n_kept));
    }
    if (n_kept > 0) {
        append_pending(round_.data(), n_kept);
    }
    n_past_ += n_kept;
    timings.n_rounds++;
    timings.n_drafted += n - 1;
    timings.n_accepted += std::max(0, n_kept - 1);
    round_.clear();
}

}  // namespace eagle
