// The replayed recurrent state of a hybrid memory: recorded tokens, pending replay and undo.
//
// Upstream keeps n_rs_seq copies of every recurrent state. Here each cell of llama_memory_recurrent keeps one state S
// and the inputs of the tokens after S (its records). The next decode first replays the kept records, so seq_rm on the
// tail only reduces a count. eagle_gdn.h describes the operations, eagle_round_graph.h builds the graphs, and
// eagle_round_decode.h lists the steps of a decode. LLAMA_EAGLE_RS in the environment: "replay" (default), "unfused"
// (replay with ordinary operations) or "snapshots" (upstream's method).

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "eagle_round_layout.h"
#include "ggml-backend.h"
#include "llama.h"

struct llama_model;

struct eagle_round_cell {
    uint32_t n_kept = 0;          // records that belong to the sequence; the next decode replays them
    uint32_t n_replay = 0;        // records that the current decode replays
    bool dirty = false;           // a decode of this cell has not finished: its layers may be inconsistent
    std::vector<llama_pos> back;  // per record: distance in positions to the cell's last token
};

struct eagle_round_state {
    eagle_round_layout layout;
    bool fused = false;                  // the devices of all layers' caches support the operations of eagle_gdn.h
    bool at_once = false;                // decodes commit all rows (eagle_round_commit_at_once)
    std::vector<ggml_tensor *> records;  // per layer [floats of a row, n_cells]; null: no records
    std::vector<ggml_tensor *> decays;   // per layer, of Mamba 2: A [1, heads], a weight
    std::vector<eagle_round_cell> cells;
    std::map<llama_seq_id, llama_pos> rounds;  // open rounds (eagle_round.h): their first positions
    std::vector<char>
        graph_memory;  // memory of every commit's graph; an RPC server reuses a graph with the same addresses
    std::unique_ptr<struct ggml_backend_sched, void (*)(ggml_backend_sched_t)> sched{nullptr, ggml_backend_sched_free};

    // Maximum number of tokens of a sequence that the next decode records.
    int64_t n_recorded() const { return at_once ? 0 : layout.n_slots; }

    // Creates the records of layer il in ctx, next to its cache tensors.
    void add_layer(ggml_context * ctx, size_t il);

    // Undoes the cell's tokens from position p0 on. Returns false and changes nothing if it cannot.
    bool trim(uint32_t cell, llama_pos & cell_pos, llama_pos p0);

    // Call it after a state load has written the cells [head, head + n).
    void loaded(uint32_t head, uint32_t n);

    // Values of the graph's I32 input in this mode, for llama_memory_recurrent_context::s_copy: the number of records
    // to replay, or without our operations the place of each sequence's state.
    int32_t input(uint32_t cell, int i) const { return fused ? (int32_t) cells[cell].n_replay : i; }
};

// Returns null if replay is not used: other architectures, LLAMA_EAGLE_RS=snapshots, devices that split tensors.
std::shared_ptr<eagle_round_state> eagle_round_state_new(const llama_model & model, bool offload, uint32_t n_cells,
                                                         uint32_t n_rs_seq);
