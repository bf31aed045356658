// One ggml graph that evaluates rows of target states and drafts n_steps tokens, unrolled: decoder, head, argmax,
// vocabulary map and embedding table. It is built once per shape; after that only its inputs change.
#pragma once

#include <cstdint>
#include <vector>

#include "eagle_draft_memory.h"
#include "ggml-cpp.h"

namespace eagle {

struct DraftModel;

// Embeddings of drafted tokens inside the graph.
struct EmbeddingTable {
    ggml_tensor * table = nullptr;  // {H, rows}, on the graph's backend
    ggml_tensor * index = nullptr;  // {1, D} I32: draft id -> row of the table; null if they are equal
};

struct SequenceTensors {
    DraftMemory memory;
    ggml_tensor * states = nullptr;  // {T, lines}: the table of the FeatureStore
};

// Tensors that graphs use in addition to the model's weights and their own inputs, and properties of the device. Must
// outlive the graphs.
struct DraftTensors {
    std::vector<SequenceTensors> sequences;
    EmbeddingTable embeddings;
    size_t alignment = 1;  // of the device's buffers, in bytes
    bool on_cpu = false;
    bool is_remote = false;  // every read waits for the network
};

// The rows of one sequence in a graph.
struct DraftPart {
    int32_t seq;
    int32_t n_in;          // rows with target states
    int32_t first_kv = 0;  // slot of the ring from which on attention covers n_kv slots
    bool operator<(const DraftPart & other) const;
};

struct DraftShape {
    std::vector<DraftPart> parts;
    int32_t n_steps;  // tokens drafted after each part's last row; 0: the rows are only evaluated
    int32_t n_kv;     // slots that attention covers, of each part
    bool operator<(const DraftShape & other) const;

    int32_t n_parts() const { return (int32_t) parts.size(); }
    int32_t n_in() const;  // sum over the parts
    // Rows of one part: the given ones, then one for each step after the first.
    int32_t n_rows(size_t part) const { return parts[part].n_in + (n_steps > 1 ? n_steps - 1 : 0); }
    int32_t n_rows() const;
    int32_t end_kv() const { return parts[0].first_kv + n_kv; }  // of the first part
};

struct DraftGraph {
    DraftGraph(const DraftModel & model, const DraftTensors & tensors, DraftShape shape);

    const DraftShape shape;
    // Layout of `positions`: all given rows, then for each step one row per part (with mask rows, those that predict of
    // each part), or the parts' blocks. Layout of `slots`: for each part its given rows, then one for each step, or its
    // block. The given rows of a part are those with states, then its mask rows. Each group begins at a multiple of
    // this number of elements, because devices require aligned data, and some ignore the offset of an unaligned view
    // (ggml-vulkan's ROPE did).
    const int32_t alignment;
    const int32_t n_block;           // rows of a part's own block; 0: a chain of steps, or mask rows
    const int32_t n_masked;          // mask rows after each part's rows with states, all of them GIVEN rows
    const int32_t n_position_parts;  // 4 with M-RoPE: the parts of a group follow each other

    ggml_context_ptr ctx;
    ggml_gallocr_ptr alloc;
    ggml_cgraph * gf = nullptr;

    // Inputs. The rows of a part's mask are the given ones, then one for each step after the first, or those of its
    // block.
    std::vector<ggml_tensor *> state_lines;  // per part {A*n_in} I32: lines of its states in the FeatureStore's table
    ggml_tensor * states_of_rows;    // {n_given} I32: which states a given row reads; the last ones are the mask's
    ggml_tensor * embeddings;        // {H, n_given}
    ggml_tensor * block_embeddings;  // {H, parts * n_block}
    ggml_tensor * positions;         // {n_position_parts * n_positions} I32
    ggml_tensor * slots;             // {n_slots} I64: destinations of K and V
    ggml_tensor * last_rows;         // {parts * n_last} I32: each part's last rows among all given rows
    ggml_tensor * last_tokens;       // {parts} I32: tokens of these rows, for block drafts
    ggml_tensor * mask;              // {n_kv, rows} F16
    ggml_tensor * mask_window;       // {n_kv, rows} F16, for layers with a sliding window

    // {parts, n_steps}: probabilities of the drafted tokens over the draft's vocabulary. On a remote device the token
    // ids follow in the same tensor, as floats, so that one read returns both.
    ggml_tensor * probs;

    // Outputs, one per step.
    std::vector<ggml_tensor *> ids;     // {parts} I32, draft vocabulary
    std::vector<ggml_tensor *> logits;  // {D, parts}
    std::vector<ggml_tensor *> hidden;  // {H, parts}: input of the next step

    int32_t align(int32_t n) const { return (n + alignment - 1) / alignment * alignment; }
    int32_t n_given(size_t part) const { return shape.parts[part].n_in + n_masked; }
    int32_t n_given() const { return shape.n_in() + shape.n_parts() * n_masked; }
    int32_t n_last() const { return n_masked + 1; }  // given rows of a part that predict
    int32_t n_chained() const { return n_masked > 0 ? 1 : shape.n_steps; }
    int32_t position_of_step(int32_t step) const { return align(n_given()) + align(shape.n_parts() * n_last()) * step; }
    int32_t position_of_block() const { return align(n_given()); }
    int32_t n_positions() const {
        return n_block > 0 ? position_of_block() + align(shape.n_parts() * n_block) : position_of_step(n_chained());
    }
    int32_t slot_of_part(size_t part) const;
    int32_t slot_of_step(size_t part, int32_t step) const {
        return slot_of_part(part) + align(n_given(part)) + alignment * step;
    }
    int32_t slot_of_block(size_t part) const { return slot_of_part(part) + align(n_given(part)); }
    int32_t n_slots() const { return slot_of_part(shape.parts.size()); }
    int32_t mask_row(size_t part) const;  // the part's first row
    int32_t n_mask_rows(size_t part) const { return n_block > 0 ? n_block : shape.n_rows(part); }
};

}  // namespace eagle
