#include "eagle_session.h"

#include <algorithm>

#include "eagle_decode.h"
#include "eagle_error.h"
#include "eagle_lost_server.h"
#include "eagle_sample.h"
#include "llama-context.h"
#include "llama-model.h"

namespace eagle {

thread_local ggml_type draft_kv_type = GGML_TYPE_F16;

DraftParams draft_params(const llama_context * ctx, const eagle_session_params & params) {
    DraftParams p = {};
    p.n_ctx = params.n_ctx_draft > 0 ? params.n_ctx_draft : (int32_t) llama_n_ctx_seq(ctx);
    p.n_threads = params.n_threads > 0 ? params.n_threads : llama_n_threads(const_cast<llama_context *>(ctx));
    p.type_kv = draft_kv_type;
    p.n_rows_pending = MAX_PENDING;
    p.n_rows_staged = (int32_t) llama_n_ubatch(ctx);
    p.path_tgt = params.path_tgt;
    p.path_dft = params.path_dft;
    p.n_vocab_draft = params.n_vocab_draft;
    p.base_ids.assign(params.base_ids, params.base_ids + params.n_base_ids);
    return p;
}

// A draft appends states piece by piece. With n_draft_max > 0 llama.cpp also keeps the last n_rs_seq + 1 tokens of a
// batch together. So prompts are evaluated in llama.cpp's own pieces of n_ubatch tokens, to have the bits of plain
// decoding.
Session::Session(llama_context * ctx, const llama_model * draft, const eagle_session_params & params)
    : ctx_(ctx),
      n_draft_max_(params.n_draft_max),
      n_ctx_(params.n_ctx > 0 ? std::min(params.n_ctx, (int32_t) llama_n_ctx_seq(ctx))
                              : (int32_t) llama_n_ctx_seq(ctx)),
      n_batch_((int32_t) llama_n_batch(ctx)),
      n_window_(llama_model_n_swa(llama_get_model(ctx))),
      recurrent_(llama_model_is_recurrent(llama_get_model(ctx)) || llama_model_is_hybrid(llama_get_model(ctx))),
      n_piece_(draft || (recurrent_ && n_draft_max_ > 0) ? std::min((int32_t) llama_n_ubatch(ctx), n_batch_)
                                                         : n_batch_),
      progress_(params) {
    require_fitting_context();
    if (draft) {
        drafter_ = make_drafter(*ctx, *draft, params, 1);
    }
    rows_ = drafter_ ? drafter_->add_sequence(0) : std::make_unique<Sequence>();
    ctx_->device_logits.wanted = true;
}

Session::~Session() {
    ctx_->device_logits.wanted = false;
}

void Session::require_fitting_context() const {
    if (recurrent_ && (int32_t) llama_n_rs_seq(ctx_) < n_draft_max_) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("drafts of %d tokens need a context with n_rs_seq >= %d, this one has %u", n_draft_max_,
                           n_draft_max_, llama_n_rs_seq(ctx_)));
    }
    if (n_draft_max_ + 1 > std::min((int32_t) llama_n_ubatch(ctx_), n_batch_)) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("drafts of %d tokens need n_batch and n_ubatch >= %d, not %u and %u", n_draft_max_,
                           n_draft_max_ + 1, llama_n_batch(ctx_), llama_n_ubatch(ctx_)));
    }
    if (llama_memory_seq_pos_max(llama_get_memory(ctx_), 0) >= 0) {
        throw Error(EAGLE_ERR_STATE, "the context has tokens in its memory already: clear it first");
    }
}

int32_t Session::n_vocab() const {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx_)));
}

void Session::reset() {
    llama_memory_clear(llama_get_memory(ctx_), false);
    broken_ = false;
    round_.clear();
    rows_->clear();
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
    if (n_past() + n > n_ctx_) {
        throw Error(EAGLE_ERR_CONTEXT_FULL,
                    format("%d tokens do not fit: the context holds %d and has %d", n, n_ctx_, n_past()));
    }
}

int32_t Session::n_draft_room() const {
    return std::clamp(std::min(n_ctx_ - n_past() - 1, rows_->room()), 0, n_draft_max_);
}

// Decodes tokens, with logits for the rows from first_output on.
void Session::decode(const llama_token * tokens, int32_t n, int32_t first_output, bool may_stop) {
    std::vector<llama_token> ids(tokens, tokens + n);
    std::vector<llama_pos> pos(n);
    std::vector<int32_t> n_seq(n, 1);
    std::vector<int8_t> logits(n);
    llama_seq_id zero = 0;
    std::vector<llama_seq_id *> seq(n, &zero);
    for (int32_t i = 0; i < n; i++) {
        pos[i] = position(n_past() + i);
        logits[i] = i >= first_output;
    }
    run({n, ids.data(), nullptr, pos.data(), n_seq.data(), seq.data(), logits.data()}, may_stop);
}

// Decodes rows of an image with positions parts [n, N_PARTS]; with logits for the last row if `last`.
void Session::decode_embeddings(const float * values, const std::vector<llama_pos> & parts, bool last) {
    const int32_t n = (int32_t) parts.size() / RowPositions::N_PARTS;
    std::vector<llama_pos> pos(GGML_MROPE_SECTIONS *
                               (size_t) n);  // all values of a part follow each other; the fourth part is 0
    for (int32_t i = 0; i < (int32_t) parts.size(); i++) {
        pos[(i % RowPositions::N_PARTS) * n + i / RowPositions::N_PARTS] = parts[i];
    }
    std::vector<int32_t> n_seq(n, 1);
    std::vector<int8_t> logits(n);
    llama_seq_id zero = 0;
    std::vector<llama_seq_id *> seq(n, &zero);
    logits[n - 1] = last;
    run({n, nullptr, const_cast<float *>(values), pos.data(), n_seq.data(), seq.data(), logits.data()}, true);
}

void Session::run(const llama_batch & batch, bool may_stop) {
    broken_ = true;  // until the decode has succeeded
    try {
        eagle::decode(*ctx_, batch, may_stop, may_stop ? &progress_ : nullptr);
    } catch (const Error & error) {
        // A partial update of a recurrent state cannot be undone.
        broken_ = error.status != EAGLE_ERR_CONTEXT_FULL && (recurrent_ || !remove_from(n_past()));
        throw;
    }
    if (drafter_) {
        rows_->stage(drafter_->states_of_last_graph(batch.n_tokens), 0, batch.n_tokens);
    }
    broken_ = false;
}

// Returns how many of n tokens to decode together from token i on.
int32_t Session::next_piece(int32_t i, int32_t n) const {
    return std::min({n - i, n_piece_, n_batch_ - i % n_batch_});
}

void Session::eval(const llama_token * tokens, int32_t n) {
    require_ready();
    require_room(n);
    progress_.start(n);
    int32_t n_now;
    for (int32_t i = 0; i < n; i += n_now) {
        n_now = next_piece(i, n);
        const bool last = i + n_now == n;
        decode(tokens + i, n_now, last ? n_now - 1 : n_now, true);
        append_decoded(tokens + i, n_now);
        timings.n_eval += n_now;
    }
}

void Session::require_parts(const EmbeddedRows & rows) const {
    const llama_model * target = llama_get_model(ctx_);
    const int type = (int) llama_model_rope_type(target);
    if (type != GGML_ROPE_TYPE_MROPE && type != GGML_ROPE_TYPE_IMROPE) {
        throw Error(EAGLE_ERR_INCOMPATIBLE,
                    format("images need a target with M-RoPE, not %s", target->arch_name().c_str()));
    }
    const int64_t width = drafter_ ? drafter_->n_embd_image() : 0;
    if (width > 0 && width != target->hparams.n_embd) {
        throw Error(EAGLE_ERR_INCOMPATIBLE,
                    format("a draft of hidden size %lld cannot take rows of an image of width %u: draft without it",
                           (long long) width, target->hparams.n_embd));
    }
    llama_pos time = 0;
    for (int32_t i = 0; i < RowPositions::N_PARTS * rows.n; i++) {
        const bool is_time = i < rows.n;
        if (rows.parts[i] < (is_time ? time : 0) || rows.parts[i] >= rows.n_pos) {
            throw Error(EAGLE_ERR_ARGUMENT, format("row %d of %d is at position %d of %d, or its time decreases",
                                                   i % rows.n, rows.n, rows.parts[i], rows.n_pos));
        }
        time = is_time ? rows.parts[i] : time;
    }
}

void Session::eval_embeddings(const EmbeddedRows & rows) {
    require_ready();
    require_parts(rows);
    require_room(rows.n);
    progress_.start(rows.n);
    const int64_t width = llama_model_n_embd_inp(llama_get_model(ctx_));
    const llama_pos first = position(n_past());
    int32_t n_now;
    for (int32_t i = 0; i < rows.n; i += n_now) {
        n_now = next_piece(i, rows.n);
        std::vector<llama_pos> parts;
        for (int32_t row = i; row < i + n_now; row++) {
            for (int32_t part = 0; part < RowPositions::N_PARTS; part++) {
                parts.push_back(first + rows.parts[part * rows.n + row]);
            }
        }
        decode_embeddings(rows.values + i * width, parts, i + n_now == rows.n);
        broken_ = true;  // until the draft has evaluated them
        rows_->append_image(rows.values + i * width, width, parts, first + rows.n_pos);
        broken_ = false;
        timings.n_eval += n_now;
    }
}

// Appends the first n rows of the last decode.
void Session::append_decoded(const llama_token * tokens, int32_t n) {
    broken_ = true;  // until the draft has evaluated them
    rows_->append(tokens, n);
    broken_ = false;
}

void Session::trim(int32_t n_kept) {
    require_ready();
    if (n_kept > n_past()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("cannot keep %d tokens of %d", n_kept, n_past()));
    }
    if (n_kept == n_past()) {
        return;
    }
    if (n_kept == 0) {
        return reset();
    }
    if (!rows_->positions().is_cut(n_kept)) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("%d tokens end inside an image: keep the whole image or none of it", n_kept));
    }
    if (!truncate_target(n_kept)) {
        throw Error(EAGLE_ERR_STATE,
                    format("%s cannot go back from %d to %d tokens: reset and evaluate again",
                           recurrent_ ? "the recurrent state" : "the sliding window", n_past(), n_kept));
    }
    rows_->truncate(n_kept);
}

// Truncates the target's memory. Returns false if it does not hold everything that the next row reads: without swa_full
// llama.cpp frees cells that the window of the last token does not cover, and it measures the rollback of a recurrent
// state in positions, which the rows of an image share.
bool Session::truncate_target(int32_t n_past) const {
    llama_memory_t memory = llama_get_memory(ctx_);
    const llama_pos pos = position(n_past);
    if (n_window_ > 0 && llama_memory_seq_pos_min(memory, 0) > std::max(0, pos - n_window_)) {
        return false;
    }
    if (recurrent_ && rows_->positions().has_image_from(n_past) && llama_memory_seq_pos_max(memory, 0) >= pos) {
        return false;
    }
    return remove_from(n_past);
}

bool Session::remove_from(int32_t n_past) const {
    return llama_memory_seq_rm(llama_get_memory(ctx_), 0, position(n_past), -1);
}

void Session::save_state(char * data, int64_t size) const {
    require_ready();
    if (size != state_size()) {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("%lld bytes for a state of %lld", (long long) size, (long long) state_size()));
    }
    rows_->save_state(data);
    require_servers(*ctx_);
}

void Session::load_state(const char * data, int64_t size, int32_t n_past) {
    if (n_past < 0 || n_past > n_ctx_) {
        throw Error(EAGLE_ERR_ARGUMENT, format("%d tokens in a context of %d", n_past, n_ctx_));
    }
    rows_->load_state(data, size, n_past);
    broken_ = false;
    round_.clear();
}

int32_t Session::draft(llama_token id_last, int32_t n_max, float p_min, llama_token * ids, float * probs) {
    require_ready();
    const int32_t n_steps = std::min(n_max, n_draft_room());
    if (n_steps <= 0) {
        return 0;
    }
    std::vector<DraftTask> tasks = {{*rows_, id_last, ids, probs, 0}};
    drafter_->draft(tasks, n_steps, p_min);
    return tasks[0].n_out;
}

void Session::verify(const llama_token * ids, int32_t n) {
    require_ready();
    require_room(n);
    if (n_draft_max_ > 0 ? n > n_draft_max_ + 1 : n > n_batch_) {
        throw Error(EAGLE_ERR_ARGUMENT, format("a round of %d rows, but n_draft_max is %d", n, n_draft_max_));
    }
    decode(ids, n, 0, false);
    round_.assign(ids, ids + n);
}

void Session::commit(int32_t n_kept) {
    const int32_t n = (int32_t) round_.size();
    if (n == 0) {
        throw Error(EAGLE_ERR_STATE, "no round is pending: verify first");
    }
    if (n_kept < 0 || n_kept > n) {
        throw Error(EAGLE_ERR_ARGUMENT, format("cannot keep %d rows of a round of %d", n_kept, n));
    }
    if (n_kept < n && !remove_from(n_past() + n_kept)) {
        broken_ = true;
        throw Error(EAGLE_ERR_STATE, format("the recurrent state cannot undo %d rows", n - n_kept));
    }
    if (n_kept > 0) {
        append_decoded(round_.data(), n_kept);
    }
    round_.clear();
}

}  // namespace eagle
