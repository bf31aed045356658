// Functions that our patches of llama.cpp's common library and server call.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <list>

#include "common.h"
#include "eagle_drafts.h"
#include "eagle_round.h"
#include "eagle_turn.h"

// Returns true if our engine drafts with this model for the requested kind of speculation (COUNT: any requested kind).
inline bool eagle_drafts_of(const common_params_speculative & params, const llama_model * model,
                            common_speculative_type type = COMMON_SPECULATIVE_TYPE_COUNT) {
    const auto is_ours = [&](common_speculative_type t) {
        if (type != COMMON_SPECULATIVE_TYPE_COUNT && t != type) {
            return false;
        }
        if (t == COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE) {  // llama.cpp's own without --eagle-draft-length
            return model && !params.draft.eagle_length.empty();
        }
        return (t == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 || t == COMMON_SPECULATIVE_TYPE_DRAFT_MTP) &&
               eagle_drafts_supports(model);
    };
    return std::any_of(params.types.begin(), params.types.end(), is_ours);
}

// A server that our front end has started ends where it cannot draft: there the reason is shown.
inline bool eagle_must_draft(const common_params_speculative & params) {
    return params.has_synth() || params.draft.eagle_model || !params.draft.eagle_length.empty();
}

struct common_speculative;

// Returns the drafter that a slot has used last, "none" before the first draft.
std::string eagle_last_drafter(const common_speculative * spec, llama_seq_id seq);

// Returns n_within, the drafted tokens before the end of the answer, and counts no others for their drafter.
size_t eagle_count_drafted(common_speculative * spec, llama_seq_id seq, size_t n_drafted, size_t n_within);

// Adds the drafter of a slot's last draft to `names`, those that drafted for its request.
void eagle_add_drafter(const common_speculative * spec, llama_seq_id seq, size_t n_drafted, std::string & names);

// Counts the draft of a slot in this round.
template <typename Slot>
void eagle_count_draft(common_speculative * spec, Slot & slot) {
    const size_t n = slot.spec_draft.size();
    slot.stats.n_draft_tokens += eagle_count_drafted(spec, slot.id, n, slot.eagle_within(n));
    slot.eagle_n_draft = n;
    eagle_add_drafter(spec, slot.id, n, slot.stats.eagle_drafter);
}

// Returns drafted and accepted tokens, rounds and tokens per round of each drafter, in Prometheus' format.
std::string eagle_metrics(const common_speculative * spec);

template <typename Metrics>
Metrics eagle_with_drafters(Metrics metrics, const common_speculative * spec) {
    metrics.eagle_drafters = eagle_metrics(spec);
    return metrics;
}

// Copies the draft's state of slot `from` to slot `to`.
void eagle_copy_slot(common_speculative * spec, llama_seq_id from, llama_seq_id to, llama_context * ctx);

// Keep the draft's state with a prompt in the server's cache in memory, as its last checkpoint without data of the
// target, and load it into the slot to which that prompt returns.
void eagle_keep_draft(common_speculative * spec, llama_seq_id seq, llama_context * ctx,
                      std::list<common_prompt_checkpoint> & checkpoints);
void eagle_load_draft(common_speculative * spec, llama_seq_id seq, llama_context * ctx,
                      std::list<common_prompt_checkpoint> & checkpoints);

// Save and load the draft's part of a slot. If it cannot be loaded, the draft restarts and the slot remains valid.
void eagle_save_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path);
void eagle_load_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path);

// Limits what samplers remember to the context, in which nothing is older: they allocate memory for all of it.
inline void eagle_limit_history(common_params_sampling & params, int32_t n_ctx) {
    params.penalty_last_n = std::min(params.penalty_last_n, n_ctx);
    params.dry_penalty_last_n = std::min(params.dry_penalty_last_n, n_ctx);
}
