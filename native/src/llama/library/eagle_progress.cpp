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
static int32_t count_operations(const llama_context & ctx) {
    const llm_graph_result * result = ctx.eagle_last_result();
    ggml_cgraph * graph = result ? result->get_gf() : nullptr;
    int32_t n = 0;
    for (int i = 0; graph && i < ggml_graph_n_nodes(graph); i++) {
        n += computes(ggml_graph_node(graph, i));
    }
    return n;
}

// Returns the position after the last token in the memory.
static int32_t end_of(const llama_context & ctx) {
    llama_memory_t memory = llama_get_memory(&ctx);
    return memory ? llama_memory_seq_pos_max(memory, 0) + 1 : 0;
}

void Progress::start(int32_t n_total) {
    n_total_ = n_total;
    n_done_ = 0;
    reported_us_ = ggml_time_us();
}

void Progress::begin(const llama_context & ctx, int32_t n_tokens) {
    ctx_ = &ctx;
    n_tokens_ = n_tokens;
    start_ = end_of(ctx);
    begin_ = end_ = n_counted_ = 0;
}

// Begins the next micro-batch if the memory has its tokens.
void Progress::enter_batch() {
    const int32_t end = std::min(n_tokens_, end_of(*ctx_) - start_);
    if (end > end_) {
        n_operations_ = end_ > begin_ ? n_counted_ : n_operations_;
        begin_ = end_;
        end_ = end;
        n_counted_ = 0;
    }
}

void Progress::count() {
    enter_batch();
    n_counted_++;
    const int64_t now = ggml_time_us();
    if (now - reported_us_ < INTERVAL_US) {
        return;
    }
    reported_us_ = now;
    if (n_operations_ == 0) {
        n_operations_ = count_operations(*ctx_);
    }
    const double share = std::min(1.0, (double) n_counted_ / std::max(1, n_operations_));
    report_((float) ((n_done_ + begin_ + share * (end_ - begin_)) / n_total_), data_);
}

}  // namespace eagle
