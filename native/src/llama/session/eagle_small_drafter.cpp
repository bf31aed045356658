#include "eagle_small_drafter.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "eagle_error.h"

namespace eagle {

namespace {

// Header of a saved state. The state of the rows' positions follows, then the text, and the model's memory.
struct SmallHeader {
    static constexpr uint32_t MAGIC = 0x45473354;

    uint32_t magic = MAGIC;
    int32_t n_rows = 0;
    int32_t n_memory = 0;     // tokens in the model's memory
    int64_t n_positions = 0;  // bytes

    int64_t token_bytes() const { return ((int64_t) n_rows + n_memory) * (int64_t) sizeof(llama_token); }
};

void read(void * to, const char *& data, int64_t size) {
    std::memcpy(to, data, size);
    data += size;
}

void write(const void * from, char *& data, int64_t size) {
    std::memcpy(data, from, size);
    data += size;
}

}  // namespace

void SmallSequence::clear() {
    Sequence::clear();
    rows_.clear();
}

void SmallSequence::skip_to(int32_t n_past) {
    Sequence::skip_to(n_past);
    rows_.assign(n_past, UNKNOWN);
}

void SmallSequence::append(const llama_token * tokens, int32_t n) {
    Sequence::append(tokens, n);
    rows_.insert(rows_.end(), tokens, tokens + n);
    model_.note_used_tokens(tokens, n);
    const auto & known = text();
    if (model_.n_missing(seq_, known) > MAX_PENDING) {
        model_.evaluate(seq_, known);
    }
}

void SmallSequence::append_image(const float * values, int64_t width, const std::vector<llama_pos> & parts,
                                 llama_pos end) {
    Sequence::append_image(values, width, parts, end);
    rows_.resize(n_past(), UNKNOWN);
}

void SmallSequence::append_unread(int32_t n) {
    Sequence::append_unread(n);
    rows_.resize(n_past(), UNKNOWN);
}

void SmallSequence::truncate(int32_t n_past) {
    Sequence::truncate(n_past);
    rows_.resize(n_past);
}

// set_text() follows with the tokens.
void SmallSequence::shift(int32_t n) {
    Sequence::shift(n);
    rows_.resize(n_past());
}

// The tokens are all that the model needs of rows that it has not seen. Of a text with images it knows the end.
void SmallSequence::set_text(const llama_token * tokens, int32_t n, int32_t first) {
    if (n == n_past()) {
        rows_.assign(tokens, tokens + n);
    } else {
        std::fill_n(rows_.begin(), first, UNKNOWN);
    }
}

// The start depends on the length alone, and moves by half of the context: the model evaluates what follows it again.
const std::vector<llama_token> & SmallSequence::text() const {
    text_.clear();
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(text_),
                 [&](llama_token id) { return model_.knows(id); });
    const size_t n_ctx = (size_t) model_.n_ctx(), step = std::max<size_t>(1, n_ctx / 2);
    if (text_.size() > n_ctx) {
        text_.erase(text_.begin(), text_.begin() + (text_.size() - n_ctx + step - 1) / step * step);
        model_.note_sliding();
    }
    return text_;
}

int64_t SmallSequence::own_size() const {
    return (int64_t) sizeof(SmallHeader) + Sequence::state_size();
}

int64_t SmallSequence::state_size() const {
    const int64_t memory = model_.state_size(seq_, text());
    const int64_t n_tokens = (int64_t) (rows_.size() + model_.tokens(seq_).size());
    return own_size() + n_tokens * (int64_t) sizeof(llama_token) + memory;
}

void SmallSequence::save_state(char * data) const {
    const int64_t memory = model_.state_size(seq_, text());
    const auto & tokens = model_.tokens(seq_);
    SmallHeader header;
    header.n_rows = (int32_t) rows_.size();
    header.n_memory = (int32_t) tokens.size();
    header.n_positions = Sequence::state_size();
    write(&header, data, sizeof header);
    Sequence::save_state(data);
    data += header.n_positions;
    write(rows_.data(), data, (int64_t) (rows_.size() * sizeof(llama_token)));
    write(tokens.data(), data, (int64_t) (tokens.size() * sizeof(llama_token)));
    model_.save_state(seq_, data, memory);
}

void SmallSequence::load_state(const char * data, int64_t size, int32_t n_past) {
    if (!data) {
        return skip_to(n_past);
    }
    SmallHeader header;
    std::memcpy(&header, data, std::min<int64_t>(size, sizeof header));
    const bool is_ours = size >= (int64_t) sizeof header && header.magic == SmallHeader::MAGIC &&
                         header.n_rows == n_past && header.n_memory >= 0 && header.n_memory <= model_.n_ctx() &&
                         header.n_positions >= 0 &&
                         header.n_positions <= size - (int64_t) sizeof header - header.token_bytes();
    if (!is_ours) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, format("not the state of a session with this draft and %d tokens", n_past));
    }
    const char * end = data + size;
    data += sizeof header;
    Sequence::load_state(data, header.n_positions, n_past);
    data += header.n_positions;
    std::vector<llama_token> tokens(header.n_memory);
    rows_.resize(header.n_rows);
    read(rows_.data(), data, (int64_t) (rows_.size() * sizeof(llama_token)));
    read(tokens.data(), data, (int64_t) (tokens.size() * sizeof(llama_token)));
    if (!model_.load_state(seq_, data, end - data, tokens)) {
        skip_to(n_past);
        throw Error(EAGLE_ERR_INCOMPATIBLE, "the saved memory is not of this draft");
    }
}

void SmallDrafter::read_step(int32_t step, float * logits, float * hidden) const {
    if (hidden) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, "a small model reads no hidden state of its last step");
    }
    model_.read_logits(step, logits);
}

void SmallDrafter::draft(std::vector<DraftTask> & tasks, int32_t n_steps, float p_min) {
    std::map<int32_t, DraftTask *> by_seq;
    for (DraftTask & task : tasks) {
        task.n_out = 0;
        if (model_.knows(task.id_last)) {
            by_seq[static_cast<const SmallSequence &>(task.rows).seq()] = &task;
        }
    }
    std::vector<SmallModel::Part> parts;
    for (const auto & [seq, task] : by_seq) {
        std::vector<llama_token> text = static_cast<const SmallSequence &>(task->rows).text();
        text.push_back(task->id_last);
        parts.push_back({seq, std::move(text), {task->ids, task->probs}});
    }
    model_.draft(parts, n_steps, p_min);
    for (const SmallModel::Part & part : parts) {
        by_seq[part.seq]->n_out = part.out.n_out;
    }
}

}  // namespace eagle
