#include "eagle_graph.h"

#include <algorithm>

#include "eagle_cpu.h"
#include "eagle_team.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"

namespace {

// Distribution of a node among threads.
enum class sharing {
    alone,   // one thread computes it, because sharing costs more
    shared,  // tickets
    owners,  // tickets that wait for each other at barriers inside the operation
};

// A barrier costs about as much as a few thousand values of a plain operation.
constexpr int64_t FEW_VALUES = 4096;

// Returns true for ggml's operations with independent rows and without barriers.
bool is_row_wise(ggml_op op) {
    switch (op) {
    case GGML_OP_DUP:
    case GGML_OP_ADD:
    case GGML_OP_ADD_ID:
    case GGML_OP_ADD1:
    case GGML_OP_SUB:
    case GGML_OP_MUL:
    case GGML_OP_DIV:
    case GGML_OP_SQR:
    case GGML_OP_SQRT:
    case GGML_OP_LOG:
    case GGML_OP_SIN:
    case GGML_OP_COS:
    case GGML_OP_SUM_ROWS:
    case GGML_OP_MEAN:
    case GGML_OP_ARGMAX:
    case GGML_OP_REPEAT:
    case GGML_OP_CONCAT:
    case GGML_OP_NORM:
    case GGML_OP_RMS_NORM:
    case GGML_OP_L2_NORM:
    case GGML_OP_SCALE:
    case GGML_OP_CPY:
    case GGML_OP_CONT:
    case GGML_OP_GET_ROWS:
    case GGML_OP_SET_ROWS:
    case GGML_OP_SOFT_MAX:
    case GGML_OP_ROPE:
    case GGML_OP_CLAMP:
    case GGML_OP_PAD:
    case GGML_OP_ARGSORT:
    case GGML_OP_TOP_K:
    case GGML_OP_SSM_CONV:
    case GGML_OP_EAGLE_CONV_WINDOW:
    case GGML_OP_UNARY:
    case GGML_OP_GLU:
        return true;
    default:
        return false;
    }
}

// Cost of one value, relative to a plain operation.
int64_t cost_of(ggml_op op) {
    switch (op) {
    case GGML_OP_ROPE:  // sines
        return 8;
    case GGML_OP_SOFT_MAX:
    case GGML_OP_UNARY:
    case GGML_OP_GLU:  // exponentials
        return 4;
    default:
        return 1;
    }
}

// Cost of an operation: the larger number of values read or written, times the cost of a value.
int64_t values_of(const ggml_tensor * node) {
    const int64_t written = ggml_nelements(node);
    switch (node->op) {
    case GGML_OP_GET_ROWS:
        return written;
    case GGML_OP_SET_ROWS:
        return ggml_nelements(node->src[0]);
    default:
        return cost_of(node->op) * std::max(written, node->src[0] == nullptr ? 0 : ggml_nelements(node->src[0]));
    }
}

// `phases`: the number of phases if our kernels compute the node, else 0.
sharing sharing_of(const ggml_tensor * node, int phase, int phases) {
    if (phases > 0) {
        return eagle_phase_values(node, phase) <= FEW_VALUES ? sharing::alone : sharing::shared;
    }
    const bool elsewhere = node->src[0] != nullptr && node->src[0]->extra != nullptr;
    if (!is_row_wise(node->op) || elsewhere) {
        return sharing::owners;
    }
    return values_of(node) <= FEW_VALUES ? sharing::alone : sharing::shared;
}

class graph_job final : public eagle::job {
  public:
    graph_job(ggml_threadpool * pool, const ggml_cgraph * graph, const ggml_cplan * plan, int n_threads)
        : pool_(pool), graph_(graph), plan_(plan), n_threads_(n_threads) {}

    step advance() override {
        for (;;) {
            if (phase_ + 1 < phases_) {
                ++phase_;
            } else if (!next_node()) {
                return step::end;
            }
            const sharing how = n_threads_ == 1 ? sharing::alone : sharing_of(node(), phase_, phases_);
            if (how != sharing::alone) {
                return how == sharing::owners ? step::owners : step::shared;
            }
            compute_alone();
            if (n_threads_ == 1 && should_stop()) {
                was_stopped = true;
                return step::end;
            }
        }
    }

    void compute(int ticket) override { compute(ticket, n_threads_); }
    void enter(int thread) override { eagle_ggml_enter_pool(pool_, thread); }

    bool should_stop() override {
        return plan_->abort_callback != nullptr && plan_->abort_callback(plan_->abort_callback_data);
    }

    bool was_stopped = false;

  private:
    ggml_tensor * node() const { return graph_->nodes[index_]; }

    bool next_node() {
        index_ += 1 + fused_.load(std::memory_order_relaxed);
        fused_.store(0, std::memory_order_relaxed);
        while (index_ < graph_->n_nodes && is_nothing(node())) {
            ++index_;
        }
        phase_ = 0;
        phases_ = index_ < graph_->n_nodes ? eagle_phases(node(), plan_->use_ref) : 0;
        return index_ < graph_->n_nodes;
    }

    static bool is_nothing(const ggml_tensor * t) {
        return ggml_op_is_empty(t->op) || (t->flags & GGML_TENSOR_FLAG_COMPUTE) == 0;
    }

    void compute(int ticket, int n) {
        ggml_compute_params params = {ticket, n, plan_->work_size, plan_->work_data, pool_, plan_->use_ref, phase_};
        fused_.store(eagle_ggml_compute_node(graph_, index_, &params, plan_), std::memory_order_relaxed);
    }

    // Our operations lay out their work buffer for all tickets, so one thread computes them all.
    void compute_alone() {
        const int n = phases_ > 0 ? n_threads_ : 1;
        for (int i = 0; i < n; ++i) {
            compute(i, n);
        }
    }

    ggml_threadpool * pool_;
    const ggml_cgraph * graph_;
    const ggml_cplan * plan_;
    int n_threads_;
    int index_ = -1, phase_ = 0, phases_ = 0;
    std::atomic<int> fused_{0};
};

}  // namespace

void * eagle_team_borrow(int * n_threads) {
    eagle::team * t = eagle::team::borrow();
    *n_threads = t->reserve(*n_threads);
    return t;
}

void eagle_team_give_back(void * team) {
    eagle::team::give_back((eagle::team *) team);
}

bool eagle_team_compute(void * team, ggml_threadpool * pool, const ggml_cgraph * cgraph, const ggml_cplan * cplan,
                        int n_threads) {
    graph_job work(pool, cgraph, cplan, n_threads);
    return ((eagle::team *) team)->run(work, n_threads) && !work.was_stopped;
}

void eagle_team_barrier(void * team) {
    ((eagle::team *) team)->barrier();
}
