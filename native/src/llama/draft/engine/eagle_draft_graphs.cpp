#include "eagle_draft_graphs.h"

#include <atomic>

#include "ggml-impl.h"

namespace eagle {

namespace {

constexpr size_t MAX_GRAPHS = 128;         // each has its own compute buffer
constexpr uint64_t OUR_UIDS = 1ull << 63;  // ggml numbers its own graphs from 1

std::atomic<uint64_t> n_graphs_of_process = 0;

}  // namespace

std::shared_ptr<const DraftGraph> DraftGraphs::build(const DraftShape & shape) {
    auto built = std::make_shared<DraftGraph>(model_, tensors_, shape);
    device_.allocate(*built);
    built->gf->uid = OUR_UIDS | n_graphs_of_process++;
    n_built_++;
    return built;
}

// Shapes of several parts rarely repeat.
std::shared_ptr<const DraftGraph> DraftGraphs::get(const DraftShape & shape) {
    if (shape.n_parts() > 1) {
        const bool is_latest = of_several_ && !(of_several_->shape < shape) && !(shape < of_several_->shape);
        return of_several_ = is_latest ? of_several_ : build(shape);
    }
    const bool is_outgrown = !graphs_.empty() && graphs_.begin()->first.end_kv() != shape.end_kv();
    if (is_outgrown || graphs_.size() > MAX_GRAPHS) {
        graphs_.clear();
    }
    auto & cached = graphs_[shape];
    return cached = cached ? cached : build(shape);
}

}  // namespace eagle
