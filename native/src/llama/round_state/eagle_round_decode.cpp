#include "eagle_round_decode.h"

#include <algorithm>
#include <stdexcept>

#include "eagle_round_state.h"
#include "eagle_round_unfused.h"
#include "llama-batch.h"
#include "llama-impl.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

namespace {

std::vector<ggml_tensor *> cell_tensors(const llama_memory_recurrent & mem) {
    std::vector<ggml_tensor *> tensors;
    for (const auto * list : {&mem.r_l, &mem.s_l, (const std::vector<ggml_tensor *> *) &mem.eagle->records}) {
        for (ggml_tensor * t : *list) {
            if (t && !ggml_is_empty(t)) {
                tensors.push_back(t);
            }
        }
    }
    return tensors;
}

constexpr int32_t GRAPH_RECORDS = -1, GRAPH_COMMITS = -2;

struct cell_move {
    uint32_t dst;
    uint32_t src;
};

// Copies rows through host memory and reads all before it writes any, because moves may be cyclic. This is rare: a
// sequence changes its cell only if the set of sequences in a batch changes, or if a copied sequence diverges from its
// source.
void move_rows(const llama_memory_recurrent & mem, const std::vector<cell_move> & moves,
               const std::vector<uint32_t> & zeros) {
    std::vector<char> rows;
    for (ggml_tensor * t : cell_tensors(mem)) {
        const size_t size = t->nb[1];
        rows.resize(size * moves.size());
        for (size_t i = 0; i < moves.size(); i++) {
            ggml_backend_tensor_get(t, rows.data() + i * size, moves[i].src * size, size);
        }
        for (size_t i = 0; i < moves.size(); i++) {
            ggml_backend_tensor_set(t, rows.data() + i * size, moves[i].dst * size, size);
        }
        rows.assign(zeros.empty() ? 0 : size, 0);  // not all devices support memset
        for (const uint32_t cell : zeros) {
            ggml_backend_tensor_set(t, rows.data(), cell * size, size);
        }
    }
}

// Applies the moves of find_slot: cell i gets the state of cell src0, or zeros if src0 is rs_z.
void move_cells(llama_memory_recurrent & mem, ggml_backend_sched_t sched) {
    auto & cells = mem.eagle->cells;
    std::vector<cell_move> moves;
    std::vector<uint32_t> zeros;
    for (uint32_t i = mem.head; i < mem.head + mem.n; i++) {
        const int32_t src = mem.cells[i].src0;
        if (mem.rs_z >= 0 && src == mem.rs_z) {
            zeros.push_back(i);
        } else if (src != (int32_t) i) {
            moves.push_back({i, (uint32_t) src});
        }
    }
    if (moves.empty() && zeros.empty()) {
        return;
    }
    ggml_backend_sched_synchronize(sched);
    move_rows(mem, moves, zeros);
    const std::vector<eagle_round_cell> before = cells;
    for (const auto & move : moves) {
        cells[move.dst] = before[move.src];
    }
    for (const uint32_t cell : zeros) {
        cells[cell] = {};
    }
}

// Updates the cell for the tokens that the ubatch adds to it; seq is the sequence's index in the ubatch.
void record_tokens(eagle_round_cell & cell, const llama_ubatch & ubatch, uint32_t seq, int64_t n_slots) {
    const llama_pos * pos = ubatch.pos + seq * ubatch.n_seq_tokens;
    const uint32_t n_tail = (uint32_t) std::min<int64_t>(ubatch.n_seq_tokens, n_slots);
    const llama_pos last = pos[ubatch.n_seq_tokens - 1];
    cell.n_replay = cell.n_kept;
    cell.n_kept = n_tail;
    cell.dirty = true;
    cell.back.clear();
    for (uint32_t t = ubatch.n_seq_tokens - n_tail; t < ubatch.n_seq_tokens; t++) {
        cell.back.push_back(last - pos[t]);
    }
}

bool commit_cell(llama_memory_recurrent & mem, ggml_backend_sched_t sched, uint32_t i) {
    auto & cell = mem.eagle->cells[i];
    if (cell.n_kept == 0) {
        return true;
    }
    cell.dirty = true;
    if (eagle_round_commit_cell(mem, sched, i) != GGML_STATUS_SUCCESS) {
        return false;
    }
    cell = {};
    return true;
}

}  // namespace

void eagle_round_check_ubatch(uint32_t n_rs_seq, uint32_t n_ubatch) {
    if (n_rs_seq > 0 && n_ubatch < n_rs_seq + 2) {
        throw std::runtime_error(
            format("n_ubatch (%u) must be at least n_rs_seq + 2 (%u): the last n_rs_seq + 1 tokens "
                   "of a sequence stay in one ubatch",
                   n_ubatch, n_rs_seq + 2));
    }
}

llama_memory_recurrent * eagle_round_memory(llama_memory_i * memory) {
    llama_memory_recurrent * mem = nullptr;
    if (auto * recurrent = dynamic_cast<llama_memory_recurrent *>(memory)) {
        mem = recurrent;
    } else if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        mem = hybrid->get_mem_recr();
    } else if (auto * iswa = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        mem = iswa->get_mem_recr();
    }
    return mem && mem->eagle ? mem : nullptr;
}

bool eagle_round_is_dirty(llama_memory_i * memory, const llama_batch & batch) {
    const llama_memory_recurrent * mem = eagle_round_memory(memory);
    for (int32_t i = 0; mem && i < batch.n_tokens; i++) {
        for (int32_t s = 0; s < batch.n_seq_id[i]; s++) {
            const llama_seq_id seq = batch.seq_id[i][s];
            const int32_t tail = (uint32_t) seq < mem->size ? mem->cells[seq].tail : -1;
            if (tail >= 0 && mem->eagle->cells[tail].dirty) {
                LLAMA_LOG_ERROR(
                    "%s: an earlier decode of sequence %d failed half-way: remove the sequence with "
                    "llama_memory_seq_rm(mem, %d, -1, -1) and evaluate it again\n",
                    __func__, seq, seq);
                return true;
            }
        }
    }
    return false;
}

bool eagle_round_place(llama_memory_i * memory, ggml_backend_sched_t sched, const llama_ubatch & ubatch) {
    llama_memory_recurrent * mem = eagle_round_memory(memory);
    if (!mem) {
        return true;
    }
    move_cells(*mem, sched);
    for (uint32_t s = 0; s < ubatch.n_seqs; s++) {
        if (!mem->eagle->fused && !commit_cell(*mem, sched, mem->head + s)) {
            return false;
        }
        record_tokens(mem->eagle->cells[mem->head + s], ubatch, s, mem->eagle->n_recorded());
    }
    // A graph is reused if rs_z is the same, and graphs that commit at once have other nodes. find_slot sets it again.
    mem->rs_z = mem->eagle->at_once ? GRAPH_COMMITS : GRAPH_RECORDS;
    return true;
}

void eagle_round_done(llama_memory_i * memory, const llama_ubatch & ubatch) {
    if (llama_memory_recurrent * mem = eagle_round_memory(memory)) {
        for (uint32_t s = 0; s < ubatch.n_seqs; s++) {
            mem->eagle->cells[mem->head + s].dirty = false;
        }
    }
}

void eagle_round_flush(llama_memory_i * memory, ggml_backend_sched_t sched, llama_seq_id seq_id) {
    llama_memory_recurrent * mem = eagle_round_memory(memory);
    if (!mem) {
        return;
    }
    for (uint32_t i = 0; i < mem->size; i++) {
        const auto & cell = mem->cells[i];
        if (cell.is_empty() || (seq_id >= 0 && !cell.has_seq_id(seq_id))) {
            continue;
        }
        if (mem->eagle->cells[i].dirty || !commit_cell(*mem, sched, i)) {
            throw std::runtime_error("the recurrent state is incomplete after a failed decode: it cannot be saved");
        }
    }
}
