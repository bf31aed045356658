// One ggml graph that takes target states in and drafts n_steps tokens, everything unrolled: decoder, head, argmax,
// vocabulary map and embedding look-up. Built once per shape, then only its inputs change.
#pragma once

#include <cstdint>
#include <vector>

#include "eagle_draft_memory.h"
#include "ggml-cpp.h"

namespace eagle {

struct DraftModel;

// How a drafted id finds its embedding inside the graph.
struct DraftLookup {
    ggml_tensor * table = nullptr;  // {H, rows}, on the graph's backend
    ggml_tensor * index = nullptr;  // {1, D} I32: draft id -> row of the table; null when the draft id is the row
};

// Of one sequence.
struct DraftPlace {
    DraftMemory memory;
    ggml_tensor * states = nullptr;  // {T, lines}: the feature store's table
};

// What graphs use beside the model's weights and their own inputs; it outlives them.
struct DraftTensors {
    std::vector<DraftPlace> places;
    DraftLookup lookup;
    size_t alignment = 1;  // of the device's buffers, in bytes
    bool on_cpu = false;
    bool is_remote = false;  // each reading waits for the network
};

// One sequence's share of a graph.
struct DraftPart {
    int32_t seq;
    int32_t n_in;  // rows with target states
    bool operator<(const DraftPart & other) const;
};

struct DraftShape {
    std::vector<DraftPart> parts;
    int32_t n_steps;  // tokens drafted after each part's last row; 0 only takes the rows in
    int32_t n_kv;     // slots that attention looks at
    bool operator<(const DraftShape & other) const;

    int32_t n_parts() const { return (int32_t) parts.size(); }
    int32_t n_in() const;  // of all parts
    // Of one part: its given rows, then one per further step.
    int32_t n_rows(size_t part) const { return parts[part].n_in + (n_steps > 1 ? n_steps - 1 : 0); }
    int32_t n_rows() const;
};

struct DraftGraph {
    DraftGraph(const DraftModel & model, const DraftTensors & tensors, DraftShape shape);

    const DraftShape shape;
    // Places in positions: those of all given rows, then for each step those of one row per part. In slots: part by
    // part those of its given rows, then one for each step. Each group begins at a multiple of n_apart: devices want
    // the data of an operation aligned, and some ignore the offset of a view that is not (ggml-vulkan's ROPE took
    // other rows' positions).
    const int32_t n_apart;
    const int32_t n_position_parts;  // 4 with M-RoPE. Of the rows read together, part after part

    ggml_context_ptr ctx;
    ggml_gallocr_ptr alloc;
    ggml_cgraph * gf = nullptr;

    // inputs; rows are part by part the given ones, then one per further step
    std::vector<ggml_tensor *> state_lines;  // per part {A*n_in} I32: where the states lie in its store's table
    ggml_tensor * embeddings;                // {H, n_in}
    ggml_tensor * positions;                 // {n_position_parts * n_positions} I32
    ggml_tensor * slots;                     // {n_slots} I64: where K and V go
    ggml_tensor * last_rows;                 // {parts} I32: among all given rows
    ggml_tensor * mask;                      // {n_kv, rows} F16
    ggml_tensor * mask_window;               // the same, of windowed layers

    // {parts, n_steps}: of each step's tokens, over the draft's vocabulary. On a remote device as many numbers again
    // follow, the tokens themselves: one reading has it all.
    ggml_tensor * probs;

    // outputs per step
    std::vector<ggml_tensor *> ids;     // {parts} I32, draft vocabulary
    std::vector<ggml_tensor *> logits;  // {D, parts}
    std::vector<ggml_tensor *> hidden;  // {H, parts}: what the next step is fed

    int32_t apart(int32_t n) const { return (n + n_apart - 1) / n_apart * n_apart; }
    int32_t position_of_step(int32_t step) const { return apart(shape.n_in()) + apart(shape.n_parts()) * step; }
    int32_t n_positions() const { return position_of_step(shape.n_steps); }
    int32_t slot_of_part(size_t part) const;
    int32_t slot_of_step(size_t part, int32_t step) const {
        return slot_of_part(part) + apart(shape.parts[part].n_in) + n_apart * step;
    }
    int32_t n_slots() const { return slot_of_part(shape.parts.size()); }
    int32_t mask_row(size_t part) const;  // the first one of the part
};

}  // namespace eagle
