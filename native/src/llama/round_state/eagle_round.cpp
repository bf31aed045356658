#include "eagle_round.h"

#include "eagle_error.h"
#include "eagle_round_decode.h"
#include "eagle_round_state.h"
#include "llama-memory-recurrent.h"

using eagle::Error;
using eagle::format;
using eagle::guarded;

namespace {

// One sequence of a context in replay mode.
struct sequence {
    llama_memory_t memory;
    llama_memory_recurrent * mem;
    llama_seq_id id;

    sequence(llama_context * ctx, llama_seq_id id) : memory(nullptr), mem(nullptr), id(id) {
        if (!ctx) {
            throw Error(EAGLE_ERR_ARGUMENT, "the context is null");
        }
        memory = llama_get_memory(ctx);
        mem = eagle_round_memory(memory);
        if (!mem) {
            throw Error(EAGLE_ERR_INCOMPATIBLE,
                        "this context's recurrent memory is not replayed: its architecture has "
                        "none, keeps snapshots, or LLAMA_EAGLE_RS=snapshots is set");
        }
        if (id < 0 || (uint32_t) id >= mem->size) {
            throw Error(EAGLE_ERR_ARGUMENT, format("sequence %d is out of range, the context has %u", id, mem->size));
        }
    }

    eagle_round_state & state() const { return *mem->eagle; }

    // Returns null for an empty sequence.
    const eagle_round_cell * cell() const {
        const int32_t tail = mem->cells[id].tail;
        return tail < 0 ? nullptr : &state().cells[tail];
    }

    bool dirty() const { return cell() && cell()->dirty; }

    llama_pos end() const { return llama_memory_seq_pos_max(memory, id) + 1; }

    int32_t n_undoable() const {
        const bool shared = cell() && mem->cells[mem->cells[id].tail].seq_id.size() > 1;
        return cell() && !dirty() && !shared ? (int32_t) cell()->n_kept : 0;
    }

    llama_pos first() const {
        const auto round = state().rounds.find(id);
        if (round == state().rounds.end()) {
            throw Error(EAGLE_ERR_STATE, format("no round is open on sequence %d", id));
        }
        return round->second;
    }
};

void commit(const sequence & seq, int32_t n_kept) {
    const llama_pos first = seq.first();
    const int32_t n_rows = seq.end() - first;
    if (n_rows < 0) {
        seq.state().rounds.erase(seq.id);
        throw Error(EAGLE_ERR_STATE, format("sequence %d was trimmed below the start of its round", seq.id));
    }
    if (n_kept < 0 || n_kept > n_rows) {
        throw Error(EAGLE_ERR_ARGUMENT, format("%d rows to keep, the round has %d", n_kept, n_rows));
    }
    if (n_kept < n_rows && !llama_memory_seq_rm(seq.memory, seq.id, first + n_kept, -1)) {
        throw Error(EAGLE_ERR_STATE, format("%d rows of sequence %d cannot be undone, at most %d: create the context "
                                            "with a larger n_rs_seq, or evaluate the sequence again",
                                            n_rows - n_kept, seq.id, seq.n_undoable()));
    }
    seq.state().rounds.erase(seq.id);
}

}  // namespace

int32_t eagle_round_begin(llama_context * ctx, llama_seq_id seq_id) {
    return guarded("eagle_round_begin", [&] {
        const sequence seq(ctx, seq_id);
        const auto open = seq.state().rounds.find(seq_id);
        if (open != seq.state().rounds.end() && open->second <= seq.end()) {
            throw Error(EAGLE_ERR_STATE, format("a round is open on sequence %d: commit it first", seq_id));
        }
        if (seq.dirty()) {
            throw Error(EAGLE_ERR_STATE, format("an earlier decode of sequence %d failed half-way: remove the sequence "
                                                "and evaluate it again",
                                                seq_id));
        }
        seq.state().rounds[seq_id] = seq.end();
    });
}

int32_t eagle_round_commit(llama_context * ctx, llama_seq_id seq_id, int32_t n_kept) {
    return guarded("eagle_round_commit", [&] { commit(sequence(ctx, seq_id), n_kept); });
}

int32_t eagle_round_rollback(llama_context * ctx, llama_seq_id seq_id) {
    return guarded("eagle_round_rollback", [&] { commit(sequence(ctx, seq_id), 0); });
}

void eagle_round_commit_at_once(llama_context * ctx, int32_t enable) {
    llama_memory_recurrent * mem = ctx ? eagle_round_memory(llama_get_memory(ctx)) : nullptr;
    if (mem) {
        mem->eagle->at_once = enable != 0;
    }
}

int32_t eagle_round_pending(llama_context * ctx, llama_seq_id seq_id, eagle_round_info * info) {
    return guarded("eagle_round_pending", [&] {
        if (!info || info->struct_size < sizeof(eagle_round_info)) {
            throw Error(EAGLE_ERR_ARGUMENT, "info is null or its struct_size is too small");
        }
        const sequence seq(ctx, seq_id);
        const auto round = seq.state().rounds.find(seq_id);
        info->is_open = round != seq.state().rounds.end();
        info->n_rows = info->is_open ? seq.end() - round->second : 0;
        info->n_undoable = seq.n_undoable();
        info->is_dirty = seq.dirty();
    });
}
