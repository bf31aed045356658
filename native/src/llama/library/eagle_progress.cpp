#include "eagle_progress.h"

#include <algorithm>

#include "ggml.h"
#include "llama-context.h"
#include "llama-graph.h"

namespace eagle {

static constexpr int64_t INTERVAL_US = 200 * 1000;  // a bar that moves five times a second seems to move steadily

static bool computes(const ggml_tensor * node) {
    switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return false;
    default:
        return true;
    }
}

// Returns the number of operations in the graph that is running.
static int64_t count_operations(const llama_context & ctx) {
    const llm_graph_result * result = ctx.eagle_last_result();
    ggml_cgraph * graph = result ? result->get_gf() : nullptr;
    int64_t n = 0;
    for (int i = 0; graph && i < ggml_graph_n_nodes(graph); i++) {
        n += computes(ggml_graph_node(graph, i));
    }
    return n;
}

void Progress::start(int32_t n_total) {
    n_total_ = n_total;
    n_done_ = 0;
    reported_us_ = ggml_time_us();
}

void Progress::begin(const llama_context & ctx, int32_t n_tokens) {
    ctx_ = &ctx;
    n_tokens_ = n_tokens;
    n_counted_ = 0;
    n_operations_ = 0;
}

void Progress::count() {
    n_counted_++;
    const int64_t now = ggml_time_us();
    if (now - reported_us_ < INTERVAL_US) {
        return;
    }
    reported_us_ = now;
    if (n_operations_ == 0) {
        const int32_t n_ubatch = (int32_t) llama_n_ubatch(ctx_);
        n_operations_ = std::max<int64_t>(1, count_operations(*ctx_) * ((n_tokens_ + n_ubatch - 1) / n_ubatch));
    }
    const double share = std::min(1.0, (double) n_counted_ / (double) n_operations_);
    report_((float) ((n_done_ + share * n_tokens_) / n_total_), data_);
}

}  // namespace eagle
