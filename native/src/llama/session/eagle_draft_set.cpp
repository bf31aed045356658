#include "eagle_draft_set.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "eagle_error.h"
#include "eagle_session.h"
#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-model.h"

namespace eagle {

namespace {

// Returns the position of the next row.
llama_pos end_of(const Sequence & rows) {
    return rows.positions().at(rows.n_past());
}

// Returns true if the sequence can be truncated so that the next row is at `pos`.
bool can_go_to(const Sequence & rows, llama_pos pos) {
    const int32_t row = rows.positions().row_at(pos);
    return row > 0 && row <= rows.n_past() && rows.positions().at(row) == pos;
}

// Truncates the sequence before `pos`, or skips to it over a gap. Rows before a gap are unknown and counted as one per
// position.
void go_to(Sequence & rows, llama_pos pos) {
    if (!can_go_to(rows, pos)) {
        rows.skip_to(pos);
    } else if (rows.positions().row_at(pos) < rows.n_past()) {
        rows.truncate(rows.positions().row_at(pos));
    }
}

// Throws if the draft cannot evaluate rows of an image: it needs their M-RoPE positions and the target's width.
void require_readable(const llama_ubatch & ubatch, const Drafter & drafter, int64_t n_embd_tgt) {
    const int64_t width = drafter.n_embd_image();
    if (width == 0) {
        return;  // it does not read them
    }
    if (ubatch.token || ubatch.n_pos < (uint32_t) RowPositions::N_PARTS || width != n_embd_tgt) {
        throw Error(EAGLE_ERR_INCOMPATIBLE,
                    format("a draft of hidden size %lld cannot take rows of width %lld with %u positions",
                           (long long) width, (long long) n_embd_tgt, ubatch.n_pos));
    }
}

// Bytes of the text in a saved state: the number of rows, and their tokens.
int64_t text_bytes(int32_t n_rows) {
    return (int64_t) sizeof n_rows + n_rows * (int64_t) sizeof(llama_token);
}

llama_context * require_free(llama_context * ctx) {
    if (ctx->eagle_listener) {
        throw Error(EAGLE_ERR_STATE, "the context feeds other drafts already: free them first");
    }
    return ctx;
}

// Returns the number of last tokens that the texts share.
int32_t n_equal_at_end(const std::vector<llama_token> & text, const llama_token * tokens, int32_t n) {
    const auto last = std::make_reverse_iterator(tokens + n);
    const size_t n_both = std::min<size_t>(text.size(), n);
    return (int32_t) (std::mismatch(last, last + (int64_t) n_both, text.rbegin()).first - last);
}

int32_t run_length(const llama_ubatch & ubatch, int32_t first) {
    int32_t n = 1;
    while (first + n < (int32_t) ubatch.n_tokens && ubatch.seq_id[first + n][0] == ubatch.seq_id[first][0] &&
           (ubatch.embd || ubatch.pos[first + n] == ubatch.pos[first] + n)) {
        n++;
    }
    return n;
}

}  // namespace

// Consecutive tokens, or rows of an image, of one sequence.
struct DraftSet::Run {
    const llama_ubatch & ubatch;
    int32_t first, n;

    llama_seq_id seq() const { return ubatch.seq_id[first][0]; }
    llama_pos pos() const { return ubatch.pos[first]; }
    const llama_token * tokens() const { return ubatch.token + first; }

    // [n, RowPositions::N_PARTS]
    std::vector<llama_pos> parts() const {
        std::vector<llama_pos> parts;
        for (int32_t i = first; i < first + n; i++) {
            for (int32_t part = 0; part < RowPositions::N_PARTS; part++) {
                parts.push_back(ubatch.pos[part * ubatch.n_tokens + i]);
            }
        }
        return parts;
    }
};

DraftSet::DraftSet(llama_context * ctx, const llama_model & draft, const eagle_session_params & params, int32_t n_seq)
    : ctx_(require_free(ctx)), drafter_(make_drafter(*ctx, draft, params, n_seq)), slots_(n_seq) {
    ctx_->eagle_listener = this;
}

DraftSet::~DraftSet() {
    ctx_->eagle_listener = nullptr;
}

DraftSet::Slot & DraftSet::slot(llama_seq_id seq) {
    Slot & s = slots_[seq];
    if (!s.rows) {
        s.rows = drafter_->add_sequence(seq);
    }
    return s;
}

// A failing draft must not fail the target's decode: its sequences restart after a gap.
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
    if (ubatch.embd) {
        require_readable(ubatch, drafter(), llama_get_model(ctx_)->hparams.n_embd);
    }
    ggml_backend_sched_synchronize(ctx_->get_sched());
    const std::vector<ggml_tensor *> states = drafter_->states_of_last_graph((int32_t) ubatch.n_tokens);
    int32_t n;
    for (int32_t i = 0; i < (int32_t) ubatch.n_tokens; i += n) {
        n = run_length(ubatch, i);
        const Run run = {ubatch, i, n};
        if (run.seq() >= 0 && run.seq() < n_seq()) {
            append(run, states);
        }
    }
}

void DraftSet::append(const Run & run, const std::vector<ggml_tensor *> & states) {
    Slot & s = slot(run.seq());
    Sequence & rows = *s.rows;
    try {
        if (run.ubatch.embd) {
            append_image(rows, run, states);
        } else {
            append_tokens(rows, run, states);
        }
    } catch (...) {
        rows.skip_to(run.pos() + 1);  // the next row follows a gap
        throw;
    }
    s.text.resize(rows.n_past() - run.n, UNKNOWN);
    if (run.ubatch.embd) {
        s.text.resize(rows.n_past(), IMAGE);
    } else {
        s.text.insert(s.text.end(), run.tokens(), run.tokens() + run.n);
    }
}

void DraftSet::append_tokens(Sequence & rows, const Run & run, const std::vector<ggml_tensor *> & states) {
    go_to(rows, run.pos());
    rows.stage(states, run.first, run.n);
    rows.append(run.tokens(), run.n);
}

// An image may arrive in several pieces, which with M-RoPE all have its time. The next row is after the largest of its
// positions.
void DraftSet::append_image(Sequence & rows, const Run & run, const std::vector<ggml_tensor *> & states) {
    if (run.ubatch.n_pos < (uint32_t) RowPositions::N_PARTS) {
        go_to(rows, run.pos());
        rows.stage(states, run.first, run.n);
        return rows.append_unread(run.n);
    }
    const std::vector<llama_pos> parts = run.parts();
    llama_pos end = *std::max_element(parts.begin(), parts.end()) + 1;
    if (rows.positions().continues(rows.n_past(), parts.data())) {
        end = std::max(end, end_of(rows));
    } else {
        go_to(rows, run.pos());
    }
    const int64_t width = llama_model_n_embd_inp(llama_get_model(ctx_));
    rows.stage(states, run.first, run.n);
    rows.append_image(run.ubatch.embd + run.first * width, width, parts, end);
}

// Follows a context shift: the target has removed rows before the end, so the text is shorter and ends as before. A
// shorter text that begins as before was truncated.
void DraftSet::shift(Slot & s, const llama_token * tokens, int32_t n) {
    const int32_t n_removed = s.rows->n_past() - n, n_same = n_equal_at_end(s.text, tokens, n);
    const bool is_truncated = n_removed <= 0 || std::equal(tokens, tokens + n, s.text.begin());
    if (is_truncated || n_same <= MAX_PENDING || s.rows->positions().has_image_from(0)) {
        return;
    }
    s.rows->shift(n_removed);
    s.text.erase(s.text.begin(), s.text.begin() + n_removed);
    std::fill_n(s.text.begin(), n - n_same, UNKNOWN);
}

// Shows the draft its memory from the row on where `text` and the new tokens are equal up to the end. An image counts
// as equal if the text after it is.
void DraftSet::set_text(llama_seq_id seq, const llama_token * tokens, int32_t n) {
    Slot & s = slots_[seq];
    if (!s.rows) {
        return;
    }
    s.text.resize(s.rows->n_past(), UNKNOWN);  // after a failed append or load it ends earlier
    shift(s, tokens, n);
    int32_t first = s.rows->n_past(), n_left = n;
    for (; first > 0; first--) {
        const llama_token seen = s.text[first - 1];
        if (seen != IMAGE && (n_left == 0 || seen != tokens[--n_left])) {
            break;
        }
    }
    s.rows->set_text(tokens, n, first);
}

// Returns the requests whose sequences have pending rows and room, and limits their n_max to that room.
std::vector<eagle_draft_request *> DraftSet::ready_requests(eagle_draft_request * requests, int32_t n) {
    std::vector<eagle_draft_request *> found;
    for (eagle_draft_request * r = requests; r < requests + n; r++) {
        Slot & s = slots_[r->seq];
        if (!s.rows || !can_go_to(*s.rows, r->pos)) {
            continue;
        }
        go_to(*s.rows, r->pos);
        r->n_max = std::min(r->n_max, s.rows->room());
        if (r->n_max > 0) {
            found.push_back(r);
        }
    }
    return found;
}

void DraftSet::propose(eagle_draft_request * requests, int32_t n, float p_min) {
    const std::vector<eagle_draft_request *> ready = ready_requests(requests, n);
    try {
        draft_all(ready, p_min);
    } catch (...) {
        for (const eagle_draft_request * r : ready) {
            slots_[r->seq].rows->skip_to(r->pos);
        }
        throw;
    }
}

void DraftSet::draft_all(const std::vector<eagle_draft_request *> & ready, float p_min) {
    if (ready.empty()) {
        return;
    }
    int32_t n_steps = 0, room = INT32_MAX;
    for (const eagle_draft_request * r : ready) {
        n_steps = std::max(n_steps, r->n_max);
        room = std::min(room, slots_[r->seq].rows->room());
    }
    n_steps = std::min(n_steps, room);
    std::vector<llama_token> ids(ready.size() * n_steps);
    std::vector<DraftTask> tasks;
    for (size_t i = 0; i < ready.size(); i++) {
        tasks.push_back({*slots_[ready[i]->seq].rows, ready[i]->id_last, &ids[i * n_steps], nullptr, 0});
    }
    drafter_->draft(tasks, n_steps, p_min);
    for (size_t i = 0; i < ready.size(); i++) {
        ready[i]->n_out = std::min(tasks[i].n_out, ready[i]->n_max);
        std::copy_n(tasks[i].ids, ready[i]->n_out, ready[i]->ids);
    }
}

int64_t DraftSet::n_ctx() const {
    return llama_n_ctx_seq(ctx_);
}

int32_t DraftSet::n_vocab() const {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx_)));
}

// A state is the text, followed by the state of the draft.
int64_t DraftSet::state_size(llama_seq_id seq, llama_pos pos) {
    Slot & s = slots_[seq];
    if (!s.rows || !can_go_to(*s.rows, pos)) {
        return 0;
    }
    go_to(*s.rows, pos);
    return text_bytes(s.rows->n_past()) + s.rows->state_size();
}

void DraftSet::save_state(llama_seq_id seq, char * data, int64_t size) const {
    const Slot & s = slots_[seq];
    const int32_t n_rows = s.rows ? s.rows->n_past() : 0;
    if (!s.rows || size != text_bytes(n_rows) + s.rows->state_size()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("sequence %d has no state of %lld bytes", seq, (long long) size));
    }
    std::vector<llama_token> text = s.text;
    text.resize(n_rows, UNKNOWN);
    std::memcpy(data, &n_rows, sizeof n_rows);
    std::memcpy(data + sizeof n_rows, text.data(), n_rows * sizeof(llama_token));
    s.rows->save_state(data + text_bytes(n_rows));
}

void DraftSet::load_state(llama_seq_id seq, const char * data, int64_t size, llama_pos pos) {
    Slot & s = slot(seq);
    s.rows->skip_to(pos);
    s.text.assign(pos, UNKNOWN);
    if (!data) {
        return;
    }
    int32_t n_rows = 0;
    std::memcpy(&n_rows, data, std::min<int64_t>(size, sizeof n_rows));
    if (n_rows < 0 || n_rows > n_ctx() || size <= text_bytes(n_rows)) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, format("%lld bytes are no state of a sequence", (long long) size));
    }
    try {
        s.rows->load_state(data + text_bytes(n_rows), size - text_bytes(n_rows), n_rows);
        if (end_of(*s.rows) != pos) {
            throw Error(EAGLE_ERR_INCOMPATIBLE, format("not the state of a sequence that ends at position %d", pos));
        }
    } catch (...) {
        s.rows->skip_to(pos);
        throw;
    }
    s.text.resize(n_rows);
    std::memcpy(s.text.data(), data + sizeof n_rows, n_rows * sizeof(llama_token));
}

}  // namespace eagle
