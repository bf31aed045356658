#include "eagle_feature_drafter.h"

#include <algorithm>

#include "eagle_sequence.h"

namespace eagle {

namespace {

// Returns the number of drafted tokens that the text has, of n.
int32_t n_right(const llama_token * ids, const llama_token * text, int32_t n) {
    return (int32_t) (std::mismatch(ids, ids + n, text).first - ids);
}

}  // namespace

FeatureDrafter::FeatureDrafter(llama_context & ctx, const llama_model & draft, const DraftParams & params)
    : engine_(draft, ctx, params),
      boundaries_(ctx, engine_.model().states),
      window_((int32_t) std::min<int64_t>(engine_.model().n_trained, engine_.widest()), engine_.widest()) {
    engine_.set_window(window_.now());
}

std::unique_ptr<Sequence> FeatureDrafter::add_sequence(llama_seq_id) {
    const int32_t seq = n_sequences_ == 0 ? 0 : engine_.add_sequence();
    n_sequences_++;
    return std::make_unique<Sequence>(&engine_, seq);
}

void FeatureDrafter::draft(std::vector<DraftTask> & tasks, int32_t n_steps, float p_min) {
    std::vector<float> own(tasks.size() * n_steps);
    std::vector<DraftRows> parts;
    std::vector<DraftOut> out;
    for (size_t i = 0; i < tasks.size(); i++) {
        parts.push_back(tasks[i].rows.rows_to_draft(tasks[i].id_last));
        out.push_back({tasks[i].ids, tasks[i].probs ? tasks[i].probs : &own[i * n_steps]});
    }
    for (const DraftRows & rows : parts) {
        settle(rows);
    }
    const size_t longest =
        std::max_element(parts.begin(), parts.end(), [](const auto & a, const auto & b) { return a.row < b.row; }) -
        parts.begin();
    const bool compares = draft_with_rivals(parts[longest], n_steps);
    engine_.set_window(window_.now());
    const int32_t n = engine_.draft(parts, n_steps, p_min, out);
    if (compares) {
        open_.ids.assign(tasks[longest].ids, tasks[longest].ids + n);
    }
    for (size_t i = 0; i < tasks.size(); i++) {
        tasks[i].n_out = tasks[i].rows.finish_draft(out[i].probs, n, p_min);
    }
}

// Compares the last drafts with the tokens that followed. A row is paired with the token after it.
void FeatureDrafter::settle(const DraftRows & rows) {
    const int32_t first = open_.row - 1 - rows.row;
    if (rows.seq != open_.seq) {
        return;
    }
    open_.seq = -1;
    if (first < 0 || first >= rows.n) {
        return;
    }
    const int32_t n_steps = (int32_t) (open_.ids_of_rivals.size() / open_.rivals.size());
    const int32_t n_known = std::min({rows.n - first, n_steps, (int32_t) open_.ids.size()});
    const llama_token * text = rows.tokens + first;
    for (size_t i = 0; i < open_.rivals.size(); i++) {
        const int32_t n_right_rival = n_right(&open_.ids_of_rivals[i * n_steps], text, n_known);
        window_.compared(open_.window, n_right(open_.ids.data(), text, n_known), open_.rivals[i], n_right_rival);
    }
}

// Now and then drafts the next token with all other windows, which reads the weights once, or a block with one of them.
bool FeatureDrafter::draft_with_rivals(const DraftRows & rows, int32_t n_steps) {
    std::vector<int32_t> rivals = window_.rivals(rows.row + rows.n);
    if (rivals.empty()) {
        return false;
    }
    const bool is_block = engine_.model().block.n_max > 0;
    if (is_block) {
        rivals = {rivals[n_comparisons_++ % rivals.size()]};
    }
    n_steps = is_block ? n_steps : 1;
    const size_t n = rivals.size();
    std::vector<float> probs(n * n_steps);
    std::vector<llama_token> ids(n * n_steps);
    std::vector<DraftRows> parts;
    std::vector<DraftOut> out;
    for (size_t i = 0; i < n; i++) {
        parts.push_back(rows);
        parts.back().window = rivals[i];
        out.push_back({&ids[i * n_steps], &probs[i * n_steps]});
    }
    engine_.draft(parts, n_steps, 0.0f, out);
    open_ = {rows.seq, rows.row + rows.n + 1, window_.now(), {}, rivals, ids};
    return true;
}

}  // namespace eagle
