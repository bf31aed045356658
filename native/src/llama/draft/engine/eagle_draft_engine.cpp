#include "eagle_draft_engine.h"

#include <algorithm>

#include "eagle_bytes_read.h"
#include "eagle_draft_kinds.h"
#include "eagle_error.h"
#include "ggml-backend.h"
#include "llama-impl.h"
#include "llama-model.h"

namespace eagle {

namespace {

constexpr int32_t MAX_ROWS = 512;  // rows per graph: limits the compute buffer of a long prompt
constexpr int32_t KV_STEP = 256;   // attention covers a multiple of this many slots, so that graphs are reused

int32_t round_up(int32_t n, int32_t step) {
    return (n + step - 1) / step * step;
}

}  // namespace

// ggml would abort in the first round if the device lacks an operation, or lacks it for a type or head size.
DraftEngine::DraftEngine(const llama_model & draft, const llama_context & target, const DraftParams & params)
    : draft_(draft), params_(params), model_(read_draft_model(draft, target)) {
    window_ = widest();
    const int64_t n_needed = (int64_t) window_ + MAX_ROWS + KV_STEP;
    params_.n_slots = round_up((int32_t) std::min<int64_t>(n_needed, llama_n_ctx_seq(&target)), KV_STEP);
    place_on(model_->device);
    const ggml_tensor * node = first_unsupported_node();
    if (!node) {
        return;
    }
    notice_ = format(
        "the draft runs on the CPU: %s does not compute its %s (heads of %lld, weights in %s); load it "
        "there (draft_gpu_layers 0), or build llama.cpp's backend with what it needs",
        ggml_backend_dev_name(model_->device), ggml_op_desc(node), (long long) model_->n_head_dim,
        ggml_type_name(model_->weight_type));
    LLAMA_LOG_WARN("%s: %s\n", __func__, notice_.c_str());
    model_ = read_draft_model(draft, target);
    place_on(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    if ((node = first_unsupported_node())) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, format("no device computes the draft's %s: convert the draft to another "
                                                   "type of weights",
                                                   ggml_op_desc(node)));
    }
}

// Allocates everything of the draft on the device, and frees what an earlier device had.
void DraftEngine::place_on(ggml_backend_dev_t device) {
    graphs_.reset();
    sequences_.clear();
    weights_.reset();
    device_.reset();
    device_ = std::make_unique<DraftDevice>(device, params_.n_threads);
    weights_ = std::make_unique<DraftWeights>(*model_, draft_, params_, *device_);
    tensors_ = {{}, weights_->embeddings(), device_->alignment(), device_->is_cpu(), device_->is_remote()};
    graphs_ = std::make_unique<DraftGraphs>(*model_, tensors_, *device_);
    inputs_ = std::make_unique<DraftInputs>(*model_, sequences_);
    add_sequence();
}

int32_t DraftEngine::add_sequence() {
    const int32_t seq = (int32_t) sequences_.size();
    auto added = std::make_unique<DraftSequence>(*model_, params_, *device_);
    tensors_.sequences.push_back({added->memory, added->features.table()});
    sequences_.push_back(std::move(added));
    clear(seq);
    return seq;
}

// Checks the graphs of a round and of a long prompt; null: the device computes all nodes.
const ggml_tensor * DraftEngine::first_unsupported_node() const {
    const DraftShape round = {{{0, 1}}, 2, KV_STEP}, prompt = {{{0, MAX_ROWS}}, 1, n_slots()};
    for (const DraftShape & shape : {round, prompt}) {
        const DraftGraph probe(*model_, tensors_, shape);
        for (int i = 0; i < ggml_graph_n_nodes(probe.gf); i++) {
            const ggml_tensor * node = ggml_graph_node(probe.gf, i);
            if (!device_->supports(*node)) {
                return node;
            }
        }
    }
    return nullptr;
}

double DraftEngine::bytes_read() const {
    double sum = 0;
    for (ggml_tensor * const * weight : model_->weights()) {
        sum += *weight ? eagle::bytes_read(**weight, draft_.hparams, draft_.hparams.n_layer(), 1) : 0.0;
    }
    return sum;
}

void DraftEngine::clear(int32_t seq) {
    sequence(seq).features.fill_with_zeros(model_->lead);
    sequence(seq).skip_to(0);
}

int32_t DraftEngine::end_slot(const DraftRows & rows, int32_t n_steps) const {
    return model_->slot_of(rows.row) + rows.n + (n_steps > 0 ? model_->n_more_rows(n_steps) : 0);
}

// Returns the end in the ring of the slots that attention covers for rows before slot `end`.
int32_t DraftEngine::last_covered(int32_t end) const {
    return round_up((end - 1) % n_slots() + 1, KV_STEP);
}

// Returns how many slots before that end the rows attend to, or all slots if those pass the end of the ring. The same
// number for most rows of a text, so that graphs are reused.
int32_t DraftEngine::n_covered(const DraftRows & rows, int32_t n_steps) const {
    const int32_t end = end_slot(rows, n_steps), last = last_covered(end);
    const int32_t n = round_up(window_of(rows) + end - model_->slot_of(rows.row), KV_STEP) + KV_STEP;
    return end > n_slots() && n > last ? n_slots() : std::min(n, last);
}

// Also counts the slots that the graph writes.
DraftShape DraftEngine::shape_of(const std::vector<DraftRows> & parts, int32_t n_steps) {
    DraftShape shape = {{}, n_steps, 0};
    for (const DraftRows & rows : parts) {
        const int32_t end = end_slot(rows, n_steps);
        sequence(rows.seq).note_written(end);
        note_sliding(end);
        shape.n_kv = std::max(shape.n_kv, n_covered(rows, n_steps));
    }
    for (const DraftRows & rows : parts) {
        const int32_t first = last_covered(end_slot(rows, n_steps)) - shape.n_kv;
        shape.parts.push_back({rows.seq, rows.n, std::max(first, 0)});
    }
    return shape;
}

void DraftEngine::note_sliding(int32_t end_slot) {
    const int32_t n_window = sequence(0).memory.n_window;
    if (end_slot > n_window && !slides_) {
        slides_ = true;
        notice_ = sliding_notice(n_window);
        LLAMA_LOG_WARN("%s\n", notice_.c_str());
    }
}

// Appends whole graphs of rows until the rest, which is returned, fits into one.
DraftRows DraftEngine::append_all_but_last(DraftRows rows) {
    for (; rows.n > MAX_ROWS; rows = rows.skip(MAX_ROWS)) {
        append(rows.take(MAX_ROWS));
    }
    return rows;
}

void DraftEngine::append(const DraftRows & rows) {
    const std::vector<DraftRows> parts = {append_all_but_last(rows)};
    const auto graph = graphs_->get(shape_of(parts, 0));
    inputs_->write(*graph, parts, window_);
    device_->compute(*graph, 0.0f);
}

int32_t DraftEngine::draft(const std::vector<DraftRows> & given, int32_t n_steps, float p_min,
                           const std::vector<DraftOut> & out) {
    std::vector<DraftRows> parts;
    for (const DraftRows & rows : given) {
        parts.push_back(append_all_but_last(rows));
    }
    const auto graph = graphs_->get(shape_of(parts, n_steps));
    inputs_->write(*graph, parts, window_);
    n_drafted_ = device_->compute(*graph, p_min);
    last_drafted_ = graph;
    read_drafts(*graph, out);
    return n_drafted_;
}

void DraftEngine::read_drafts(const DraftGraph & graph, const std::vector<DraftOut> & out) const {
    const size_t n = out.size();
    const bool ids_are_included = device_->is_remote();  // behind the probabilities, see DraftGraph::probs
    std::vector<int32_t> ids(n);
    std::vector<float> probs(n * n_drafted_ * (ids_are_included ? 2 : 1));
    ggml_backend_tensor_get(graph.probs, probs.data(), 0, probs.size() * sizeof(float));
    device_->require_connected();
    for (int32_t step = 0; step < n_drafted_; step++) {
        if (ids_are_included) {
            std::copy_n(probs.begin() + (n_drafted_ + step) * n, n, ids.begin());
        } else {
            ggml_backend_tensor_get(graph.ids[step], ids.data(), 0, n * sizeof(int32_t));
        }
        for (size_t p = 0; p < n; p++) {
            if (ids[p] < 0 || ids[p] >= model_->n_vocab_draft) {
                throw Error(EAGLE_ERR_COMPUTE,
                            format("the draft on %s chose token %d of %lld: its logits are no numbers", device(),
                                   ids[p], (long long) model_->n_vocab_draft));
            }
            out[p].ids[step] = model_->target_id(ids[p]);
            out[p].probs[step] = probs[step * n + p];
        }
    }
}

void DraftEngine::read_step(int32_t step, float * logits, float * hidden) const {
    const auto graph = last_drafted_.lock();
    if (!graph || step < 0 || step >= n_drafted_) {
        throw Error(EAGLE_ERR_ARGUMENT, format("step %d was not drafted", step));
    }
    if (logits) {
        ggml_backend_tensor_get(graph->logits[step], logits, 0, graph->logits[step]->nb[1]);
    }
    if (hidden) {
        ggml_backend_tensor_get(graph->hidden[step], hidden, 0, graph->hidden[step]->nb[1]);
    }
}

}  // namespace eagle
