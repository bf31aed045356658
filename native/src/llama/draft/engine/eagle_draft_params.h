// Options of a draft engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ggml.h"
#include "llama.h"

namespace eagle {

struct DraftParams {
    int64_t n_ctx;    // number of tokens that a draft attends to, at most the number that it was trained with
    int32_t n_slots;  // of its memory; set by the engine
    int32_t n_threads;
    ggml_type type_kv;
    int32_t n_rows_pending;  // capacity for features that the draft has not evaluated yet
    int32_t n_rows_staged;   // maximum number of rows that one decode of the target adds
    // GGUF files of the target and the draft, null if unknown: sources of weights that the CPU holds repacked.
    const char * path_tgt;
    const char * path_dft;
    int64_t n_vocab_draft;              // rows of a trimmed head; 0: the model's own head
    std::vector<llama_token> base_ids;  // for that head, most frequent first
};

// The notice that a drafter gives once.
inline std::string sliding_notice(int64_t n_ctx) {
    return "the text is longer than the draft's context: it drafts from the last " + std::to_string(n_ctx) + " tokens";
}

}  // namespace eagle
