#include "eagle_feature_drafter.h"

#include "eagle_sequence.h"

namespace eagle {

FeatureDrafter::FeatureDrafter(llama_context & ctx, const llama_model & draft, const DraftParams & params)
    : engine_(draft, ctx, params), boundaries_(ctx, engine_.model().states) {}

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
    const int32_t n = engine_.draft(parts, n_steps, p_min, out);
    for (size_t i = 0; i < tasks.size(); i++) {
        tasks[i].n_out = tasks[i].rows.finish_draft(out[i].probs, n, p_min);
    }
}

}  // namespace eagle
