#include "eagle_following_head.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "eagle_error.h"
#include "ggml-backend.h"
#include "llama-vocab.h"

namespace eagle {

namespace {

constexpr int64_t GROUP = 16;    // rows of a group in repacked layouts
constexpr int64_t RESERVED = 8;  // one of this many rows is reserved for tokens of the text

int64_t round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}

// Returns the buffer type of our repacked layout, which multiplies a single row fastest; null if the device is no CPU.
ggml_backend_buffer_type_t wide_buffer_type(ggml_backend_t backend) {
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    auto * extra_types = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t * types = extra_types ? extra_types(device) : nullptr;
    while (types && *types && !is_wide(*types)) {
        types++;
    }
    return types ? *types : nullptr;
}

// Returns up to n_most end-of-generation and control tokens, in this order: every trimmed vocabulary contains them.
std::vector<llama_token> control_tokens(const llama_vocab & vocab, size_t n_most) {
    std::vector<llama_token> ids;
    for (llama_token id = 0; id < (llama_token) vocab.n_tokens() && ids.size() < n_most; id++) {
        if (vocab.is_eog(id)) {
            ids.push_back(id);
        }
    }
    for (llama_token id = 0; id < (llama_token) vocab.n_tokens() && ids.size() < n_most; id++) {
        if (vocab.is_control(id) && !vocab.is_eog(id)) {
            ids.push_back(id);
        }
    }
    return ids;
}

}  // namespace

int64_t FollowingHead::rounded(int64_t n_rows) {
    return round_up(n_rows, GROUP);
}

FollowingHead::FollowingHead(DraftModel & model, WeightRows whole, const llama_vocab & vocab, ggml_backend_t backend,
                             const FollowingParams & params)
    : model_(model), whole_(std::move(whole)) {
    const int64_t n_rows = rounded(params.n_rows);
    read_whole_rows();
    choose_rows(vocab, n_rows, params.base);
    model_.n_vocab_draft = n_rows;
    make_head(backend);
}

void FollowingHead::read_whole_rows() {
    whole_row_of_.assign(model_.n_vocab, -1);
    for (int64_t row = 0; row < model_.n_vocab_draft; row++) {
        whole_row_of_[model_.target_id((int32_t) row)] = (int32_t) row;
    }
}

// Fills the rows in order of priority. The last rows are reserved: they start with the least frequent tokens, and the
// last of them is replaced first.
void FollowingHead::choose_rows(const llama_vocab & vocab, int64_t n_rows, const std::vector<llama_token> & base) {
    first_reserved_ = (int32_t) (n_rows - round_up(n_rows / RESERVED, GROUP));
    std::vector<llama_token> & ids = model_.d2t_id;
    ids.clear();
    row_of_.assign(model_.n_vocab, -1);
    auto add = [&](llama_token id) {
        if (id < model_.n_vocab && whole_row_of_[id] >= 0 && row_of_[id] < 0 && (int64_t) ids.size() < n_rows) {
            row_of_[id] = (int32_t) ids.size();
            ids.push_back(id);
        }
    };
    for (llama_token id : control_tokens(vocab, first_reserved_)) {
        add(id);
    }
    for (llama_token id : base) {
        add(id);
    }
    for (llama_token id = 0; id < model_.n_vocab; id++) {
        add(id);
    }
    for (int32_t row = (int32_t) n_rows - 1; row >= first_reserved_; row--) {
        place_.push_back(reserved_.insert(reserved_.end(), row));
    }
    std::reverse(place_.begin(), place_.end());
}

ggml_tensor * FollowingHead::allocate(ggml_backend_buffer_type_t type) {
    const ggml_tensor * whole = model_.output;
    ctx_.reset(ggml_init({ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * head = ggml_new_tensor_2d(ctx_.get(), whole->type, whole->ne[0], model_.n_vocab_draft);
    ggml_set_name(head, "draft_head");
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), type));
    if (!buffer_) {
        throw Error(EAGLE_ERR_MEMORY, format("no memory for a draft's head of %lld rows, %zu MiB",
                                             (long long) head->ne[1], ggml_nbytes(head) >> 20));
    }
    return head;
}

void FollowingHead::make_head(ggml_backend_t backend) {
    ggml_backend_buffer_type_t wide = wide_buffer_type(backend);
    ggml_tensor * head = wide ? allocate(wide) : nullptr;
    if (!head || !head->extra) {  // `extra` is set if the layout supports this type and shape
        head = allocate(ggml_backend_get_default_buffer_type(backend));
    }
    model_.output = head;
    std::vector<int32_t> rows(head->ne[1]);
    std::iota(rows.begin(), rows.end(), 0);
    std::sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) { return model_.d2t_id[a] < model_.d2t_id[b]; });
    std::vector<char> data(ggml_nbytes(head));
    for (int32_t row : rows) {
        read_row(row, data.data() + row * head->nb[1]);
    }
    ggml_backend_tensor_set(head, data.data(), 0, data.size());
}

void FollowingHead::mark_used(int32_t row) {
    if (row >= first_reserved_) {
        reserved_.splice(reserved_.end(), reserved_, place_[row - first_reserved_]);
    }
}

std::vector<int32_t> FollowingHead::note_used_tokens(const llama_token * ids, int32_t n) {
    std::vector<int32_t> changed;
    for (int32_t i = 0; i < n; i++) {
        if (whole_row_of_[ids[i]] < 0) {
            continue;
        }
        int32_t & row = row_of_[ids[i]];
        if (row < 0) {
            row = reserved_.front();
            row_of_[model_.d2t_id[row]] = -1;
            model_.d2t_id[row] = ids[i];
            changed.push_back(row);
        }
        mark_used(row);
    }
    std::sort(changed.begin(), changed.end());
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    write_rows(changed);
    return changed;
}

void FollowingHead::read_row(int32_t row, char * to) {
    whole_.read(whole_row_of_[model_.d2t_id[row]], to);
}

// Writes ascending rows, and those of one group at once.
void FollowingHead::write_rows(const std::vector<int32_t> & rows) {
    ggml_tensor * head = model_.output;
    const int64_t n_together = rows_together(*head);
    std::vector<char> group(n_together * head->nb[1]);
    for (size_t i = 0; i < rows.size();) {
        const int64_t first = rows[i] - rows[i] % n_together;
        if (n_together > 1) {
            ggml_backend_tensor_get(head, group.data(), first * head->nb[1], group.size());
        }
        for (; i < rows.size() && rows[i] < first + n_together; i++) {
            read_row(rows[i], group.data() + (rows[i] - first) * head->nb[1]);
        }
        ggml_backend_tensor_set(head, group.data(), first * head->nb[1], group.size());
    }
}

}  // namespace eagle
