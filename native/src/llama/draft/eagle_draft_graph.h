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

// What graphs use beside the model's weights and their own inputs; it outlives them.
struct DraftTensors {
    DraftMemory memory;
    DraftLookup lookup;
    ggml_tensor * states = nullptr;  // {T, lines}: the feature store's table
    size_t alignment = 1;            // of the device's buffers, in bytes
    bool on_cpu = false;
};

struct DraftShape {
    int32_t n_in;     // rows with target states
    int32_t n_steps;  // tokens drafted after the last row; 0 only takes the rows in
    int32_t n_kv;     // slots that attention looks at
    bool operator<(const DraftShape & other) const;
};

struct DraftGraph {
    DraftGraph(const DraftModel & model, const DraftTensors & tensors, DraftShape shape);

    const DraftShape shape;
    // Places in positions and slots: those of the n_in rows, then from n_bulk on, n_apart from one to the next, those
    // of the last of them and of each further one, read alone. Devices want the data of an operation aligned, and some
    // ignore the offset of a view that is not: ggml-vulkan's ROPE took other rows' positions.
    const int32_t n_apart;
    const int32_t n_bulk;
    const int32_t n_parts;  // of a position: 4 with M-RoPE. Of the rows read together, part after part

    ggml_context_ptr ctx;
    ggml_gallocr_ptr alloc;
    ggml_cgraph * gf = nullptr;

    // inputs; rows are the n_in given ones, then one per further step
    ggml_tensor * state_lines;  // {A*n_in} I32: where the states lie in the store's table
    ggml_tensor * embeddings;   // {H, n_in}
    ggml_tensor * positions;    // {n_parts * n_places} I32
    ggml_tensor * slots;        // {n_places} I64: where K and V go
    ggml_tensor * mask;         // {n_kv, rows} F16
    ggml_tensor * mask_window;  // the same, of windowed layers

    ggml_tensor * probs;  // {n_steps}: of each step's token, over the draft's vocabulary

    // outputs per step
    std::vector<ggml_tensor *> ids;     // {1} I32, draft vocabulary
    std::vector<ggml_tensor *> logits;  // {D, 1}
    std::vector<ggml_tensor *> hidden;  // {H, 1}: what the next step is fed

    int32_t n_rows() const { return shape.n_in + (shape.n_steps > 1 ? shape.n_steps - 1 : 0); }
    int32_t n_places() const { return n_bulk + n_apart * shape.n_steps; }
    int32_t place_alone(int32_t row) const { return n_bulk + n_apart * (row - shape.n_in + 1); }
};

}  // namespace eagle
