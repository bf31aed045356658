// Steps of a decode with a replayed recurrent state:
//   1. llama_memory_recurrent::find_slot chooses a cell for each sequence.
//   2. eagle_round_place moves states between cells accordingly, so that the graph works in place on cells
//      [head, head + n_seqs), and sets the number of records to replay.
//   3. The graph is allocated, checked by eagle_round_is_placed, and computed.
//   4. eagle_round_done.

#pragma once

#include "eagle_round_nodes.h"  // eagle_round_is_placed
#include "ggml-backend.h"
#include "llama.h"

class llama_memory_recurrent;
struct llama_memory_i;
struct llama_ubatch;

// Throws if n_ubatch is too small for the tokens that must stay undoable.
void eagle_round_check_ubatch(uint32_t n_rs_seq, uint32_t n_ubatch);

// Returns the recurrent part of a context's memory if it is in replay mode, else null.
llama_memory_recurrent * eagle_round_memory(llama_memory_i * memory);

// Returns true if an earlier decode of one of the sequences failed half-way, so that this one must be refused. Logs the
// remedy.
bool eagle_round_is_dirty(llama_memory_i * memory, const llama_batch & batch);

// Call it between apply() and the graph of a ubatch. Returns false if the pending replay could not be computed.
bool eagle_round_place(llama_memory_i * memory, ggml_backend_sched_t sched, const llama_ubatch & ubatch);

// Call it after the graph of a ubatch has succeeded.
void eagle_round_done(llama_memory_i * memory, const llama_ubatch & ubatch);

// Replays the pending records of a sequence (-1: all) into the cache, so that it can be saved. Earlier tokens cannot be
// undone afterwards. Throws if a cell is dirty or the computation fails.
void eagle_round_flush(llama_memory_i * memory, ggml_backend_sched_t sched, llama_seq_id seq_id);
