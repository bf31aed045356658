// The replayed recurrent state of a hybrid memory: what is recorded, what is pending, and who may undo what.
//
// Upstream keeps n_rs_seq copies of every recurrent state. Here each cell of llama_memory_recurrent keeps one state, S,
// and the raw inputs of the last tokens since S (its records). The next decode first replays the records that were
// kept, so seq_rm on the tail only shortens a count. eagle_gdn.h describes the operations, eagle_round_graph.h builds
// graphs of them, eagle_round_decode.h follows a decode. LLAMA_EAGLE_RS in the environment: "replay" (default),
// "unfused" (replay with ordinary operations) or "snapshots" (upstream's way).

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "eagle_round_layout.h"
#include "ggml-backend.h"
#include "llama.h"

struct llama_model;

struct eagle_round_cell {
    uint32_t n_kept = 0;          // records that belong to the sequence: replayed by the next decode
    uint32_t n_replay = 0;        // records that the running decode replays
    bool dirty = false;           // a decode started on this cell and did not end: layers disagree
    std::vector<llama_pos> back;  // per record: positions between it and the cell's last token
};

struct eagle_round_state {
    eagle_round_layout layout;
    bool fused = false;                  // every layer's cache lies on a device that knows eagle_gdn.h
    bool at_once = false;                // decodes leave nothing to replay: eagle_round_commit_at_once
    std::vector<ggml_tensor *> records;  // per layer [floats of a row, n_cells]; null: no records
    std::vector<eagle_round_cell> cells;
    std::map<llama_seq_id, llama_pos> rounds;  // open rounds of eagle_round.h: first position of each
    std::vector<char> graph_memory;  // of each commit's graph: an RPC server knows the same one by its addresses
    std::unique_ptr<struct ggml_backend_sched, void (*)(ggml_backend_sched_t)> sched{nullptr, ggml_backend_sched_free};

    // How many tokens of a sequence the next decode records.
    int64_t n_recorded() const { return at_once ? 0 : layout.n_slots; }

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
