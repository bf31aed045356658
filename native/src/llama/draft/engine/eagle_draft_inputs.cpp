#include "eagle_draft_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml-backend.h"

namespace eagle {

namespace {

// ggml does not allocate inputs that the graph does not use.
void write_input(ggml_tensor * t, const void * data) {
    if (t->buffer) {
        ggml_backend_tensor_set(t, data, 0, ggml_nbytes(t));
    }
}

}  // namespace

void DraftInputs::write(const DraftGraph & g, const std::vector<DraftRows> & parts, int32_t window) {
    std::vector<int32_t> last_rows, last_tokens, states_of_rows;
    int32_t n = 0, n_states = 0;
    embeddings_.clear();
    for (size_t p = 0; p < parts.size(); p++) {
        sequences_[parts[p].seq]->features.lines(parts[p].first, parts[p].n, lines_);
        write_input(g.state_lines[p], lines_.data());
        if (g.embeddings->buffer) {
            append_embeddings(parts[p]);
            append_masks(g.n_masked);
        }
        for (int32_t i = 0; i < parts[p].n; i++) {
            states_of_rows.push_back(n_states++);
        }
        states_of_rows.insert(states_of_rows.end(), g.n_masked, g.shape.n_in());
        n += g.n_given(p);
        for (int32_t i = g.n_last(); i > 0; i--) {
            last_rows.push_back(n - i);
        }
        last_tokens.push_back(parts[p].tokens ? parts[p].tokens[parts[p].n - 1] : 0);
    }
    set_positions_and_slots(g, parts);
    write_mask(g, g.mask, parts, window);
    write_mask(g, g.mask_window, parts, window);
    write_input(g.states_of_rows, states_of_rows.data());
    write_input(g.embeddings, embeddings_.data());
    write_blocks(g, parts);
    write_input(g.positions, positions_.data());
    write_input(g.slots, slots_.data());
    write_input(g.last_rows, last_rows.data());
    write_input(g.last_tokens, last_tokens.data());
}

void DraftInputs::append_embeddings(const DraftRows & rows) {
    for (int32_t i = 0; i < rows.n; i++) {
        if (rows.embeddings) {
            const float * given = rows.embeddings + i * rows.width;
            embeddings_.insert(embeddings_.end(), given, given + model_.n_embd);
        } else {
            append_embedding(rows.tokens[i]);
        }
    }
}

void DraftInputs::append_embedding(llama_token id) {
    const ggml_tensor * table = model_.tok_embd;
    row_.resize(table->nb[1]);
    ggml_backend_tensor_get(table, row_.data(), id * table->nb[1], row_.size());
    embeddings_.resize(embeddings_.size() + model_.n_embd);
    float * out = embeddings_.data() + embeddings_.size() - model_.n_embd;
    if (table->type == GGML_TYPE_F32) {
        std::memcpy(out, row_.data(), row_.size());
    } else {
        ggml_get_type_traits(table->type)->to_float(row_.data(), out, model_.n_embd);
    }
}

void DraftInputs::append_masks(int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        append_embedding(model_.block.mask);
    }
}

void DraftInputs::write_blocks(const DraftGraph & g, const std::vector<DraftRows> & parts) {
    if (g.n_block == 0) {
        return;
    }
    embeddings_.clear();
    for (const DraftRows & rows : parts) {
        append_embedding(rows.tokens[rows.n - 1]);
        append_masks(g.n_block - 1);
    }
    write_input(g.block_embeddings, embeddings_.data());
}

// Row r of a part attends to the filled ones of the last `window` or n_window slots, its own included, and a row of a
// block that is not causal also to the rest of the block.
void DraftInputs::write_mask(const DraftGraph & g, ggml_tensor * mask, const std::vector<DraftRows> & parts,
                             int32_t window) {
    if (!mask->buffer) {  // no layer uses it
        return;
    }
    const bool of_window = mask == g.mask_window;
    const bool causal = of_window ? model_.block.causal_window : model_.block.causal;
    const int32_t n_window = of_window ? model_.n_window : INT32_MAX;
    const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0f), hidden = ggml_fp32_to_fp16(-INFINITY);
    mask_.assign((size_t) mask->ne[1] * g.shape.n_kv, hidden);
    for (size_t p = 0; p < parts.size(); p++) {
        const int32_t slot = model_.slot_of(parts[p].row) + (g.n_block > 0 ? parts[p].n : 0);
        const DraftSequence & sequence = *sequences_[parts[p].seq];
        const int32_t first = std::min(sequence.first_held(), slot);
        const int32_t n_seen = std::min(parts[p].window > 0 ? parts[p].window : window, n_window);
        for (int32_t r = 0; r < g.n_mask_rows(p); r++) {
            const auto row = mask_.begin() + (size_t) (g.mask_row(p) + r) * g.shape.n_kv;
            const int32_t end = slot + r + 1;
            const int32_t seen = g.n_block > 0 && !causal ? slot + g.n_block : end;
            sequence.memory.each_range(std::max(first, end - n_seen), seen, [&](int32_t at, int32_t n) {
                std::fill_n(row + at - g.shape.parts[p].first_kv, n, visible);
            });
        }
    }
    ggml_backend_tensor_set(mask, mask_.data(), 0, ggml_nbytes(mask));
}

// Sets the position of row i of `rows` (rows after the last one are drafted) at place `place` of a group of n that
// begins at `group`. With M-RoPE it is the position of the target's row, part by part; otherwise the number of the
// slot.
void DraftInputs::set_position(const DraftGraph & g, const DraftRows & rows, int32_t i, int32_t group, int32_t place,
                               int32_t n) {
    const int32_t row = rows.row + i;
    if (g.n_position_parts == 1) {
        positions_[group + place] = model_.slot_of(row);
        return;
    }
    int32_t * parts = &positions_[group * g.n_position_parts + place];
    for (int32_t part = 0; part < RowPositions::N_PARTS; part++) {
        parts[part * n] = rows.positions->at(row, part) + model_.lead;
    }
    parts[RowPositions::N_PARTS * n] = model_.rope.rest_is_time ? parts[0] : 0;
}

void DraftInputs::set_positions_and_slots(const DraftGraph & g, const std::vector<DraftRows> & parts) {
    positions_.assign(g.n_position_parts * g.n_positions(), 0);
    slots_.assign(g.n_slots(), 0);
    int32_t given = 0;
    for (size_t p = 0; p < parts.size(); p++) {
        const DraftRows & rows = parts[p];
        const int32_t slot = model_.slot_of(rows.row), n_slots = sequences_[rows.seq]->memory.n_ctx;
        for (int32_t i = 0; i < g.n_given(p); i++) {
            set_position(g, rows, i, 0, given++, g.n_given());
            slots_[g.slot_of_part(p) + i] = (slot + i) % n_slots;
        }
        for (int32_t i = 0; i < g.n_masked; i++) {
            set_position(g, rows, rows.n + i, g.position_of_step(0), (int32_t) p * g.n_last() + 1 + i,
                         g.shape.n_parts() * g.n_last());
        }
        for (int32_t i = 0; i < g.n_block; i++) {
            set_position(g, rows, rows.n + i, g.position_of_block(), (int32_t) p * g.n_block + i,
                         g.shape.n_parts() * g.n_block);
            slots_[g.slot_of_block(p) + i] = (slot + rows.n + i) % n_slots;
        }
        for (int32_t step = 0; step < g.n_chained() && g.n_block == 0; step++) {
            const int32_t i = rows.n - 1 + step;
            set_position(g, rows, i, g.position_of_step(step), (int32_t) p * g.n_last(),
                         g.shape.n_parts() * g.n_last());
            slots_[g.slot_of_step(p, step)] = (slot + i) % n_slots;
        }
    }
}

}  // namespace eagle
