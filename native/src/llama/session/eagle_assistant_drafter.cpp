#include "eagle_assistant_drafter.h"

#include <algorithm>
#include <cstring>

#include "eagle_error.h"
#include "ggml-backend.h"

namespace eagle {

namespace {

constexpr int32_t MAX_STATES = MAX_PENDING + 1;  // more than the rows of a round

// Header of a saved state. The positions of the rows follow, then the state of the last row.
struct AssistantHeader {
    static constexpr uint32_t MAGIC = 0x45473361;

    uint32_t magic = MAGIC;
    int32_t n_past = 0;
    int64_t n_positions = 0;  // bytes
    int64_t n_floats = 0;
};

}  // namespace

void AssistantSequence::clear() {
    Sequence::clear();
    states_.clear();
}

void AssistantSequence::skip_to(int32_t n_past) {
    Sequence::skip_to(n_past);
    states_.clear();
}

void AssistantSequence::stage(const std::vector<ggml_tensor *> & states, int32_t first, int32_t n) {
    const int32_t n_stored = std::min(n, MAX_STATES);
    const size_t row_bytes = width() * sizeof(float);
    n_staged_ = n;
    staged_.resize(n_stored * width());
    ggml_backend_tensor_get(states[0], staged_.data(), (first + n - n_stored) * row_bytes, n_stored * row_bytes);
}

// Keeps the stored states of the first n staged rows.
void AssistantSequence::keep_staged(int32_t n) {
    const int32_t n_stored = (int32_t) (staged_.size() / width());
    const int32_t n_kept = std::max(n - (n_staged_ - n_stored), 0);
    states_.assign(staged_.begin(), staged_.begin() + n_kept * (int64_t) width());
}

void AssistantSequence::append(const llama_token * tokens, int32_t n) {
    Sequence::append(tokens, n);
    keep_staged(n);
    model_.note_used_tokens(tokens, n);
}

void AssistantSequence::append_image(const float * values, int64_t width, const std::vector<llama_pos> & parts,
                                     llama_pos end) {
    Sequence::append_image(values, width, parts, end);
    keep_staged((int32_t) parts.size() / RowPositions::N_PARTS);
}

void AssistantSequence::append_unread(int32_t n) {
    Sequence::append_unread(n);
    keep_staged(n);
}

void AssistantSequence::truncate(int32_t n_past) {
    const size_t n_dropped = (this->n_past() - n_past) * width();
    Sequence::truncate(n_past);
    states_.resize(states_.size() - std::min(n_dropped, states_.size()));
}

int64_t AssistantSequence::state_size() const {
    const size_t n_floats = state() ? width() : 0;
    return (int64_t) (sizeof(AssistantHeader) + n_floats * sizeof(float)) + Sequence::state_size();
}

void AssistantSequence::save_state(char * data) const {
    AssistantHeader header;
    header.n_past = n_past();
    header.n_positions = Sequence::state_size();
    header.n_floats = state() ? (int64_t) width() : 0;
    std::memcpy(data, &header, sizeof header);
    Sequence::save_state(data + sizeof header);
    if (state()) {
        std::memcpy(data + sizeof header + header.n_positions, state(), width() * sizeof(float));
    }
}

void AssistantSequence::load_state(const char * data, int64_t size, int32_t n_past) {
    if (!data) {
        return skip_to(n_past);
    }
    AssistantHeader header;
    std::memcpy(&header, data, std::min<int64_t>(size, sizeof header));
    const int64_t n_rest = size - (int64_t) sizeof header;
    const int64_t n_bytes = header.n_floats * (int64_t) sizeof(float);
    if (n_rest < 0 || header.magic != AssistantHeader::MAGIC || header.n_past != n_past ||
        (header.n_floats != 0 && header.n_floats != (int64_t) width()) || header.n_positions != n_rest - n_bytes) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, format("not the state of a session with this draft and %d tokens", n_past));
    }
    data += sizeof header;
    Sequence::load_state(data, header.n_positions, n_past);
    states_.resize(header.n_floats);
    if (n_bytes > 0) {
        std::memcpy(states_.data(), data + header.n_positions, n_bytes);
    }
}

void AssistantDrafter::draft(std::vector<DraftTask> & tasks, int32_t n_steps, float p_min) {
    std::vector<AssistantModel::Part> parts;
    for (const DraftTask & task : tasks) {
        const auto & rows = static_cast<const AssistantSequence &>(task.rows);
        const llama_pos pos = rows.positions().at(rows.n_past());
        parts.push_back({rows.seq(), pos, task.id_last, rows.state(), {task.ids, task.probs}});
    }
    model_.draft(parts, n_steps, p_min);
    for (size_t i = 0; i < tasks.size(); i++) {
        tasks[i].n_out = parts[i].out.n_out;
    }
}

}  // namespace eagle
