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

void DraftInputs::write(const DraftGraph & g, const std::vector<DraftRows> & parts) {
    std::vector<int32_t> last_rows;
    int32_t n = 0;
    embeddings_.clear();
    for (size_t p = 0; p < parts.size(); p++) {
        sequences_[parts[p].seq]->features.lines(parts[p].first, parts[p].n, lines_);
        write_input(g.state_lines[p], lines_.data());
        append_embeddings(parts[p]);
        last_rows.push_back((n += parts[p].n) - 1);
    }
    set_positions_and_slots(g, parts);
    write_mask(g, g.mask, parts, g.shape.n_kv);
    write_mask(g, g.mask_window, parts, model_.n_window);
    write_input(g.embeddings, embeddings_.data());
    write_input(g.positions, positions_.data());
    write_input(g.slots, slots_.data());
    write_input(g.last_rows, last_rows.data());
}

void DraftInputs::append_embeddings(const DraftRows & rows) {
    const ggml_tensor * table = model_.tok_embd;
    const auto * traits = ggml_get_type_traits(table->type);
    std::vector<char> row(table->nb[1]);
    const size_t n_before = embeddings_.size();
    embeddings_.resize(n_before + rows.n * model_.n_embd);
    for (int32_t i = 0; i < rows.n; i++) {
        float * out = embeddings_.data() + n_before + i * model_.n_embd;
        if (rows.embeddings) {
            std::copy_n(rows.embeddings + i * rows.width, model_.n_embd, out);
            continue;
        }
        ggml_backend_tensor_get(table, row.data(), rows.tokens[i] * table->nb[1], row.size());
        if (table->type == GGML_TYPE_F32) {
            std::memcpy(out, row.data(), row.size());
        } else {
            traits->to_float(row.data(), out, model_.n_embd);
        }
    }
}

// Row r of a part attends to the filled ones of the last n_window slots, its own included.
void DraftInputs::write_mask(const DraftGraph & g, ggml_tensor * mask, const std::vector<DraftRows> & parts,
                             int32_t n_window) {
    if (!mask->buffer) {  // no layer uses it
        return;
    }
    const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0f), hidden = ggml_fp32_to_fp16(-INFINITY);
    mask_.assign((size_t) g.shape.n_rows() * g.shape.n_kv, hidden);
    for (size_t p = 0; p < parts.size(); p++) {
        const int32_t slot = model_.slot_of(parts[p].row);
        const int32_t first = std::min(sequences_[parts[p].seq]->first_slot, slot);
        for (int32_t r = 0; r < g.shape.n_rows(p); r++) {
            const auto row = mask_.begin() + (size_t) (g.mask_row(p) + r) * g.shape.n_kv;
            const int32_t end = slot + r + 1;
            std::fill(row + std::max(first, end - n_window), row + end, visible);
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
        for (int32_t i = 0; i < rows.n; i++) {
            set_position(g, rows, i, 0, given++, g.shape.n_in());
            slots_[g.slot_of_part(p) + i] = model_.slot_of(rows.row) + i;
        }
        for (int32_t step = 0; step < g.shape.n_steps; step++) {
            const int32_t i = rows.n - 1 + step;
            set_position(g, rows, i, g.position_of_step(step), (int32_t) p, g.shape.n_parts());
            slots_[g.slot_of_step(p, step)] = model_.slot_of(rows.row) + i;
        }
    }
}

}  // namespace eagle
