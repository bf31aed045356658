// Cache of draft graphs by shape.
#pragma once

#include <map>
#include <memory>

#include "eagle_draft_device.h"
#include "eagle_draft_graph.h"

namespace eagle {

// All graphs of one part in the cache cover slots up to the same one: a growing text does not come back to an earlier
// one.
class DraftGraphs {
  public:
    // The references must outlive the cache.
    DraftGraphs(const DraftModel & model, const DraftTensors & tensors, DraftDevice & device)
        : model_(model), tensors_(tensors), device_(device) {}

    // Builds the graph if it is not cached. The cache may drop it at the next call.
    std::shared_ptr<const DraftGraph> get(const DraftShape & shape);

    int64_t n_built() const { return n_built_; }

  private:
    const DraftModel & model_;
    const DraftTensors & tensors_;
    DraftDevice & device_;
    std::map<DraftShape, std::shared_ptr<const DraftGraph>> graphs_;
    std::shared_ptr<const DraftGraph> of_several_;  // the latest graph of several parts
    int64_t n_built_ = 0;

    std::shared_ptr<const DraftGraph> build(const DraftShape & shape);
};

}  // namespace eagle
