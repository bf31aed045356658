// What llama.cpp's common library and server ask at the call sites of our patches.
#pragma once

#include <algorithm>

#include "common.h"
#include "eagle_drafts.h"
#include "eagle_round.h"
#include "eagle_turn.h"

// Whether our engine drafts with this model, for a kind of speculation or any of those that were asked for.
inline bool eagle_drafts_of(const common_params_speculative & params, const llama_model * model,
                            common_speculative_type type = COMMON_SPECULATIVE_TYPE_COUNT) {
    const auto is_ours = [&](common_speculative_type t) {
        return (t == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 || t == COMMON_SPECULATIVE_TYPE_DRAFT_MTP) &&
               (type == COMMON_SPECULATIVE_TYPE_COUNT || t == type);
    };
    return eagle_drafts_supports(model) && std::any_of(params.types.begin(), params.types.end(), is_ours);
}

struct common_speculative;

// The kind that drafted last for a slot, "none" before.
std::string eagle_last_drafter(const common_speculative * spec, llama_seq_id seq);

// Drafted and accepted tokens, rounds and tokens a round by drafter, in Prometheus' format.
std::string eagle_metrics(const common_speculative * spec);

// The slot `to` holds what `from` holds.
void eagle_copy_slot(common_speculative * spec, llama_seq_id from, llama_seq_id to, llama_context * ctx);

// The draft's part of a slot's file. What cannot be loaded costs drafts, not the slot.
void eagle_save_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path);
void eagle_load_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path);
