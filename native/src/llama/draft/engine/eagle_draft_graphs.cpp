#include "eagle_draft_graphs.h"

#include <atomic>

#include "ggml-impl.h"

namespace eagle {

namespace {

constexpr size_t MAX_GRAPHS = 128;         // each has its own compute buffer
constexpr uint64_t OUR_UIDS = 1ull << 63;  // ggml numbers its own graphs from 1

std::atomic<uint64_t> n_graphs_of_process = 0;

}  // namespace

// Shapes of several parts rarely repeat, so the cache keeps only the latest of those graphs.
std::shared_ptr<const DraftGraph> DraftGraphs::get(const DraftShape & shape) {
    const bool is_outgrown = !graphs_.empty() && graphs_.begin()->first.n_kv != shape.n_kv;
    if (is_outgrown || shape.n_parts() > 1 || graphs_.size() > MAX_GRAPHS) {
        graphs_.clear();
    }
    auto & cached = graphs_[shape];
    if (!cached) {
        auto built = std::make_shared<DraftGraph>(model_, tensors_, shape);
        device_.allocate(*built);
        built->gf->uid = OUR_UIDS | n_graphs_of_process++;
        n_built_++;
        cached = std::move(built);
    }
    return cached;
}

}  // namespace eagle
