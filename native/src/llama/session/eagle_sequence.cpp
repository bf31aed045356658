#include "eagle_sequence.h"

#include <climits>
#include <cstring>

#include "eagle_error.h"

namespace eagle {

Sequence::Sequence(DraftEngine * engine, int32_t seq) : engine_(engine), seq_(seq) {
    if (engine_) {
        width_ = engine_->model().n_states() * engine_->model().n_embd_tgt;
    }
}

void Sequence::clear() {
    n_past_ = n_removed_ = 0;
    positions_.clear();
    pending_tokens_.clear();
    if (engine_) {
        engine_->clear(seq_);
    }
}

void Sequence::skip_to(int32_t n_past) {
    if (n_past == 0) {
        return clear();
    }
    n_past_ = n_past;
    n_removed_ = 0;
    positions_.clear();
    pending_tokens_.clear();
    if (engine_) {
        features().truncate(0);
        draft().skip_to(slot_of(n_past));
    }
}

void Sequence::shift(int32_t n) {
    n_past_ -= n;
    n_removed_ += n;
}

void Sequence::stage(const std::vector<ggml_tensor *> & states, int32_t first, int32_t n) {
    features().stage(states, first, n);
}

// The rows become pending. Their tokens complete the row before each of them.
void Sequence::append(const llama_token * tokens, int32_t n) {
    n_past_ += n;
    if (!engine_) {
        return;
    }
    if (n_pending() > 0) {
        pending_tokens_.push_back(tokens[0]);
    }
    pending_tokens_.insert(pending_tokens_.end(), tokens + 1, tokens + n);
    features().commit(n);
    engine_->note_used_tokens(tokens, n);
    if (n_pending() > MAX_PENDING) {
        evaluate_pending(n_pending() - 1);
    }
}

// Evaluates all rows but the last: each reads the image row after its own.
void Sequence::append_image(const float * values, int64_t width, const std::vector<llama_pos> & parts, llama_pos end) {
    const int32_t n = (int32_t) parts.size() / RowPositions::N_PARTS;
    if (n_pending() > 0) {
        evaluate_pending(n_pending() - 1);
    } else {
        values += width;  // no pending row reads the first one
    }
    positions_.add(n_past_, parts, end);
    n_past_ += n;
    if (!engine_) {
        return;
    }
    features().commit(n);
    const int32_t n_evaluated = n_pending() - 1;
    evaluate({nullptr, n_evaluated, pending_row() + n_removed_, &positions_, seq_, 0, values, width});
    features().pop_front(n_evaluated);
}

void Sequence::evaluate(const DraftRows & rows) {
    if (rows.n > 0) {
        engine_->append(rows);
    }
}

void Sequence::evaluate_pending(int32_t n) {
    evaluate({pending_tokens_.data(), n, pending_row() + n_removed_, &positions_, seq_});
    drop_pending(n);
}

void Sequence::drop_pending(int32_t n) {
    features().pop_front(n);
    pending_tokens_.erase(pending_tokens_.begin(), pending_tokens_.begin() + n);
}

void Sequence::note_used_tokens(const llama_token * ids, int32_t n) {
    if (engine_) {
        engine_->note_used_tokens(ids, n);
    }
}

void Sequence::truncate(int32_t n_past) {
    const int32_t first_pending = pending_row();
    n_past_ = n_past;
    positions_.truncate(n_past);
    if (!engine_) {
        return;
    }
    features().truncate(std::max(0, n_past - first_pending));
    draft().truncate(slot_of(n_past));
    pending_tokens_.resize(std::max(0, n_pending() - 1));
}

int32_t Sequence::room() const {
    if (!engine_) {
        return INT32_MAX;
    }
    const int32_t n_block = engine_->model().block.n_max;
    return n_pending() == 0 ? 0 : n_block > 0 ? n_block : INT32_MAX;
}

DraftRows Sequence::rows_to_draft(llama_token id_last) {
    tokens_to_draft_ = pending_tokens_;
    tokens_to_draft_.push_back(id_last);
    return {tokens_to_draft_.data(), n_pending(), pending_row() + n_removed_, &positions_, seq_};
}

int32_t Sequence::finish_draft(const float * probs, int32_t n, float p_min) {
    // The last row stays pending: id_last follows it only if the next append() says so.
    drop_pending(n_pending() - 1);
    float confidence = 1.0f;
    for (int32_t i = 0; i < n; i++) {
        confidence *= probs[i];
        if (confidence < p_min) {
            return i;
        }
    }
    return n;
}

StateHeader Sequence::state_header() const {
    StateHeader header;
    header.n_past = n_past_;
    if (engine_) {
        header.end_slot = slot_of(pending_row());
        header.first_slot = std::max(draft().first_held(), header.end_slot - draft().memory.n_window);
        header.first_slot = std::min(header.first_slot, header.end_slot);
    }
    header.pos = pending_row();
    header.n = n_pending();
    header.n_tokens = (int32_t) pending_tokens_.size();
    header.width = (int32_t) width_;
    header.n_positions = (int32_t) positions_.save().size();
    return header;
}

int64_t Sequence::state_size(const StateHeader & header) const {
    const int64_t memory = engine_ ? draft().memory.size(header.first_slot, header.end_slot) : 0;
    return (int64_t) sizeof header + header.position_bytes() + header.token_bytes() + header.feature_bytes() + memory;
}

void Sequence::save_state(char * data) const {
    const StateHeader header = state_header();
    std::memcpy(data, &header, sizeof header);
    data += sizeof header;
    std::memcpy(data, positions_.save().data(), header.position_bytes());
    data += header.position_bytes();
    std::memcpy(data, pending_tokens_.data(), header.token_bytes());
    data += header.token_bytes();
    if (engine_) {
        features().read(data);
        draft().memory.save(header.first_slot, header.end_slot, data + header.feature_bytes());
    }
}

StateHeader Sequence::read_header(const char * data, int64_t size, int32_t n_past) const {
    StateHeader header;
    std::memcpy(&header, data, std::min<int64_t>(size, sizeof header));
    const int64_t n_slots = engine_ ? engine_->n_slots() : 0;
    const int32_t lead = engine_ ? engine_->model().lead : 0;
    if (size < (int64_t) sizeof header || !header.is_valid(n_past, width_, n_slots, lead) ||
        size != state_size(header)) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, format("not the state of a session with %s and %d tokens",
                                                   engine_ ? "this draft" : "no draft", n_past));
    }
    return header;
}

void Sequence::load_state(const char * data, int64_t size, int32_t n_past) {
    if (!data) {
        return skip_to(n_past);
    }
    const StateHeader header = read_header(data, size, n_past);
    data += sizeof header;
    std::vector<int32_t> saved_positions(header.n_positions);
    std::memcpy(saved_positions.data(), data, header.position_bytes());
    data += header.position_bytes();
    RowPositions positions;
    if (!positions.load(saved_positions, n_past)) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, "the saved state has invalid positions of an image");
    }
    std::vector<llama_token> tokens(header.n_tokens);
    std::memcpy(tokens.data(), data, header.token_bytes());
    data += header.token_bytes();
    for (llama_token id : tokens) {
        if (id < 0 || id >= engine_->model().n_vocab) {
            throw Error(EAGLE_ERR_INCOMPATIBLE, format("the saved state names token %d", id));
        }
    }
    n_past_ = n_past;
    positions_ = std::move(positions);
    pending_tokens_ = std::move(tokens);
    if (engine_) {
        n_removed_ = header.n_removed(engine_->model().lead);
        features().write(data, header.n);
        draft().skip_to(header.first_slot);
        draft().memory.load(header.first_slot, header.end_slot, data + header.feature_bytes());
    }
}

}  // namespace eagle
