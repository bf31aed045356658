// Life of a decode: llama_memory_recurrent::find_slot decides which cell each sequence uses; eagle_round_place moves
// states between cells where find_slot asked for it, so that the graph always works in place on cells
// [head, head + n_seqs), and fixes how many records are replayed; the graph is allocated, eagle_round_is_placed,
// and runs; eagle_round_done.

#pragma once

#include <vector>

#include "eagle_round_nodes.h"  // eagle_round_is_placed, after a graph is allocated
#include "ggml-backend.h"
#include "llama.h"

class llama_memory_recurrent;
struct llama_memory_i;
struct llama_ubatch;

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
