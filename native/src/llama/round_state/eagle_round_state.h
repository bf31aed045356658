// The replayed recurrent state of a hybrid memory: what is recorded, what is pending, and who may undo what.
//
// Upstream keeps n_rs_seq copies of every recurrent state. Here each cell of llama_memory_recurrent keeps one state, S,
// and the raw inputs of the last tokens since S (its records). The next decode first replays the records that were
// kept, so seq_rm on the tail only shortens a count. eagle_gdn.h describes the operations, eagle_round_graph.h builds
// them. LLAMA_EAGLE_RS in the environment: "replay" (default), "unfused" (replay with ordinary operations) or
// "snapshots" (upstream's way).
//
// Life of a decode: llama_memory_recurrent::find_slot decides which cell each sequence uses; eagle_round_place moves
// states between cells where find_slot asked for it, so that the graph always works in place on cells
// [head, head + n_seqs), and fixes how many records are replayed; the graph runs; eagle_round_done.

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

class llama_memory_recurrent;
struct llama_memory_i;
struct llama_model;
struct llama_ubatch;

// What one token leaves in the records of one layer, in floats. See eagle_gdn.h for the order.
struct eagle_round_layout {
    int64_t n_slots = 0;  // tokens recorded per cell: n_rs_seq + 1, or 0 with n_rs_seq = 0
    int64_t head_dim = 0;
    int64_t n_k_heads = 0;
    int64_t n_v_heads = 0;
    int64_t n_channels = 0;   // of the convolution
    int64_t conv_window = 0;  // conv kernel - 1

    int64_t gdn_floats() const { return head_dim * (n_k_heads + n_v_heads) + 2 * n_v_heads; }
    int64_t gdn_offset() const { return n_slots * n_channels; }
    int64_t row_floats() const { return n_slots * (n_channels + gdn_floats()); }
};

struct eagle_round_cell {
    uint32_t n_kept = 0;          // records that belong to the sequence: replayed by the next decode
    uint32_t n_replay = 0;        // records that the running decode replays
    bool dirty = false;           // a decode started on this cell and did not end: layers disagree
    std::vector<llama_pos> back;  // per record: positions between it and the cell's last token
};

struct eagle_round_state {
    eagle_round_layout layout;
    bool fused = false;                  // every layer's cache lies on a backend that knows eagle_gdn.h
    std::vector<ggml_tensor *> records;  // per layer [row_floats, n_cells]; null: no records
    std::vector<eagle_round_cell> cells;
    std::map<llama_seq_id, llama_pos> rounds;  // open rounds of eagle_round.h: first position of each
    std::unique_ptr<struct ggml_backend_sched, void (*)(ggml_backend_sched_t)> sched{nullptr, ggml_backend_sched_free};

    // The records of layer il, created in ctx beside its cache tensors.
    void add_layer(ggml_context * ctx, size_t il);

    // How many of the cell's tokens from position p0 on can be undone: rewinds and returns true, or changes nothing.
    bool trim(uint32_t cell, llama_pos & cell_pos, llama_pos p0);

    // Cells [head, head + n) were written by a state load.
    void loaded(uint32_t head, uint32_t n);

    // llama_memory_recurrent_context::s_copy: the graph's I32 input holds replay counts in this mode.
    int32_t n_replay(uint32_t cell) const { return (int32_t) cells[cell].n_replay; }
};

// Null where replay is not used: other architectures, LLAMA_EAGLE_RS=snapshots, devices that split tensors.
std::shared_ptr<eagle_round_state> eagle_round_state_new(const llama_model & model, bool offload, uint32_t n_cells,
                                                         uint32_t n_rs_seq);

// Throws with the names of both parameters when n_ubatch cannot hold the tokens that stay undoable.
void eagle_round_check_ubatch(uint32_t n_rs_seq, uint32_t n_ubatch);

// The recurrent part of a context's memory if it is in replay mode, else null.
llama_memory_recurrent * eagle_round_memory(llama_memory_i * memory);

// Whether a decode of this sequence must be refused because an earlier one failed half-way. Logs the remedy.
bool eagle_round_is_dirty(const llama_memory_recurrent & mem, const std::vector<llama_ubatch> & ubatches);

// Between apply() and the graph of a ubatch. False: the pending replay could not be computed.
bool eagle_round_place(llama_memory_i * memory, ggml_backend_sched_t sched, const llama_ubatch & ubatch);

// After the graph of a ubatch succeeded.
void eagle_round_done(llama_memory_i * memory, const llama_ubatch & ubatch);

// Replays what is pending for a sequence (-1: all) into the cache, so that it can be saved. Nothing before can be
// undone afterwards. Throws when a cell is dirty or the computation fails.
void eagle_round_flush(llama_memory_i * memory, ggml_backend_sched_t sched, llama_seq_id seq_id);
