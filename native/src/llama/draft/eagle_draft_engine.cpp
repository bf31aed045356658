#include "eagle_draft_engine.h"

#include <algorithm>
#include <cstring>

#include "eagle_error.h"
#include "eagle_weight_file.h"
#include "ggml-backend.h"
#include "llama-impl.h"
#include "llama-model.h"

namespace eagle {

namespace {

constexpr int32_t MAX_ROWS = 512;  // rows per graph: bounds the compute buffer of a long prompt
constexpr int32_t KV_STEP = 256;   // attention looks at a multiple of this: fewer graphs
constexpr size_t MAX_GRAPHS = 128;

int32_t round_up(int32_t n, int32_t step) {
    return (n + step - 1) / step * step;
}

}  // namespace

DraftRows DraftRows::first_of(int32_t n_rows) const {
    DraftRows some = *this;
    some.n = n_rows;
    return some;
}

DraftRows DraftRows::after(int32_t n_taken) const {
    DraftRows rest = *this;
    rest.n -= n_taken;
    rest.row += n_taken;
    rest.first += n_taken;
    rest.tokens = tokens ? tokens + n_taken : nullptr;
    rest.embeddings = embeddings ? embeddings + n_taken * width : nullptr;
    return rest;
}

// A device may lack an operation, or have it for other types and head sizes only. ggml's would abort at the first
// round.
DraftEngine::DraftEngine(const llama_model & draft, const llama_context & target, const DraftParams & params)
    : draft_(draft), params_(params), model_(read_draft_model(draft, target)) {
    place(model_->device);
    const ggml_tensor * node = first_unsupported();
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
    place(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    if ((node = first_unsupported())) {
        throw Error(EAGLE_ERR_INCOMPATIBLE, format("no device computes the draft's %s: convert the draft to another "
                                                   "type of weights",
                                                   ggml_op_desc(node)));
    }
}

// Everything of the draft that lies on its device.
void DraftEngine::place(ggml_backend_dev_t device) {
    features_.reset();
    following_.reset();
    buffers_.clear();
    tensors_ = {};
    make_backend(device);
    const FeatureShape shape = {model_->n_states(), model_->n_embd_tgt, params_.n_rows_kept, params_.n_rows_staged};
    features_ = std::make_unique<FeatureStore>(backend_.get(), shape);
    ggml_init_params init = {};
    init.mem_size = (64 * model_->n_layer + 64) * ggml_tensor_overhead();
    init.no_alloc = true;
    ctx_.reset(ggml_init(init));
    make_following_head();
    for (ggml_tensor ** weight : model_->weights()) {
        mirror(*weight);
    }
    make_lookup();
    make_memory();
    tensors_.states = features_->table();
    tensors_.alignment = ggml_backend_get_alignment(backend_.get());
    restart();
}

// Of a round's graph and of a long prompt's; null: the device computes them all.
const ggml_tensor * DraftEngine::first_unsupported() const {
    for (const DraftShape & shape : {DraftShape{1, 2, KV_STEP}, DraftShape{MAX_ROWS, 1, (int32_t) n_ctx()}}) {
        const DraftGraph probe(*model_, tensors_, shape);
        for (int i = 0; i < ggml_graph_n_nodes(probe.gf); i++) {
            const ggml_tensor * node = ggml_graph_node(probe.gf, i);
            if (!ggml_backend_supports_op(backend_.get(), node)) {
                return node;
            }
        }
    }
    return nullptr;
}

void DraftEngine::restart() {
    features_->start(model_->lead);
    forget_slots(0);
}

void DraftEngine::make_backend(ggml_backend_dev_t device) {
    backend_.reset(ggml_backend_dev_init(device, nullptr));
    if (!backend_) {
        throw Error(EAGLE_ERR_MEMORY, format("cannot start the draft on %s", ggml_backend_dev_name(device)));
    }
    auto * set_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    if (set_threads) {
        set_threads(backend_.get(), params_.n_threads);
    }
    tensors_.on_cpu = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    if (tensors_.on_cpu) {  // others are asked, if at all, out of step
        set_abort_callback_ = (ggml_backend_set_abort_callback_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_set_abort_callback");
    }
}

bool DraftEngine::reachable(const ggml_tensor * tensor) const {
    return ggml_backend_supports_buft(backend_.get(), ggml_backend_buffer_get_type(tensor->buffer));
}

void DraftEngine::allocate(ggml_tensor * tensor) {
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backend_.get());
    ggml_backend_buffer_ptr buffer(
        ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, tensor)));
    if (!buffer) {
        throw Error(EAGLE_ERR_MEMORY, format("no memory for %zu MiB of the draft", ggml_nbytes(tensor) >> 20));
    }
    ggml_backend_tensor_alloc(buffer.get(), tensor, ggml_backend_buffer_get_base(buffer.get()));
    ggml_backend_buffer_clear(buffer.get(), 0);
    buffers_.push_back(std::move(buffer));
}

// The file of the model that a weight belongs to: a draft may share the target's head.
const char * DraftEngine::path_of(const ggml_tensor & weight) const {
    const bool own = draft_.get_tensor(weight.name) != nullptr;
    return own && params_.path_dft ? params_.path_dft : params_.path_tgt;
}

WeightRows DraftEngine::rows_of(const ggml_tensor & weight) const {
    try {
        return {weight, path_of(weight)};
    } catch (const std::runtime_error & error) {
        throw Error(
            EAGLE_ERR_INCOMPATIBLE,
            format("%s, which the draft on %s needs, lies rearranged in the memory of %s, and is taken from the "
                   "model's file: %s. Give the file that it was loaded from, or load the draft there too "
                   "(draft_gpu_layers 0)",
                   weight.name, device(), ggml_backend_buft_name(ggml_backend_buffer_get_type(weight.buffer)),
                   error.what()));
    }
}

// A weight that lies on another device than the draft's blocks (a partial offload, a head shared with the target) is
// copied once.
void DraftEngine::mirror(ggml_tensor *& tensor) {
    if (!tensor || reachable(tensor)) {
        return;
    }
    const std::vector<char> data = rows_of(*tensor).read_all();
    tensor = ggml_dup_tensor(ctx_.get(), tensor);
    allocate(tensor);
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
}

void DraftEngine::make_following_head() {
    if (params_.n_vocab_draft == 0) {
        return;
    }
    if (!model_->d2t_id.empty()) {
        throw Error(
            EAGLE_ERR_ARGUMENT,
            format("n_vocab_draft is %lld, but this %s draft has a vocabulary of its own, %lld tokens: leave it 0",
                   (long long) params_.n_vocab_draft, model_->kind, (long long) model_->n_vocab_draft));
    }
    if (params_.n_vocab_draft >= model_->n_vocab_draft) {
        return;
    }
    following_ = std::make_unique<FollowingHead>(*model_, rows_of(*model_->output), draft_.vocab, backend_.get(),
                                                 FollowingParams{params_.n_vocab_draft, params_.base_ids});
}

// llama.cpp keeps token_embd in host memory. A draft on a GPU gets the rows of its own vocabulary there, unless they
// are the rows of its head.
void DraftEngine::make_lookup() {
    ggml_tensor * all = model_->tok_embd;
    const int64_t n_draft = model_->n_vocab_draft;
    DraftLookup & lookup = tensors_.lookup;
    if (!reachable(all) && model_->tied) {
        lookup.table = model_->output;
        return;
    }
    if (!reachable(all)) {
        lookup.table = ggml_new_tensor_2d(ctx_.get(), all->type, model_->n_embd, n_draft);
        allocate(lookup.table);
    } else {
        lookup.table = all;
        if (model_->d2t_id.empty()) {
            return;
        }
        lookup.index = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_I32, 1, n_draft);
        allocate(lookup.index);
    }
    for (int32_t id = 0; id < n_draft; id++) {
        set_lookup(id);
    }
}

void DraftEngine::set_lookup(int32_t draft_id) {
    const int32_t id = model_->target_id(draft_id);
    const DraftLookup & lookup = tensors_.lookup;
    if (lookup.table == model_->output) {
        return;
    }
    if (lookup.index) {
        ggml_backend_tensor_set(lookup.index, &id, draft_id * sizeof id, sizeof id);
        return;
    }
    std::vector<char> row(model_->tok_embd->nb[1]);
    ggml_backend_tensor_get(model_->tok_embd, row.data(), id * row.size(), row.size());
    ggml_backend_tensor_set(lookup.table, row.data(), draft_id * row.size(), row.size());
}

void DraftEngine::note(const llama_token * ids, int32_t n) {
    if (following_) {
        for (int32_t row : following_->note(ids, n)) {
            set_lookup(row);
        }
    }
}

void DraftEngine::make_memory() {
    DraftMemory & memory = tensors_.memory;
    memory.n_ctx = round_up((int32_t) params_.n_ctx, KV_STEP);
    for (int64_t il = 0; il < model_->n_layer; il++) {
        for (auto * side : {&memory.k, &memory.v}) {
            const int64_t width = model_->n_head_dim * model_->n_head_kv;
            side->push_back(ggml_new_tensor_2d(ctx_.get(), params_.type_kv, width, memory.n_ctx));
            allocate(side->back());
        }
    }
}

DraftGraph & DraftEngine::graph(DraftShape shape) {
    const bool outgrown = !graphs_.empty() && graphs_.begin()->first.n_kv != shape.n_kv;
    if (outgrown || graphs_.size() > MAX_GRAPHS) {  // each has memory of its own
        graphs_.clear();
        last_ = nullptr;
    }
    auto & slot = graphs_[shape];
    if (slot) {
        return *slot;
    }
    auto made = std::make_unique<DraftGraph>(*model_, tensors_, shape);
    made->alloc.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
    if (!ggml_gallocr_alloc_graph(made->alloc.get(), made->gf)) {
        graphs_.erase(shape);
        throw Error(EAGLE_ERR_MEMORY, "no memory for the draft's graph");
    }
    n_graphs_++;
    slot = std::move(made);
    return *slot;
}

// A probability below 0 has not been computed yet.
bool EarlyStop::is_due() {
    if (n_steps == graph->shape.n_steps) {
        return false;
    }
    const float prob = ((const float *) graph->probs->data)[n_steps];
    if (prob < 0.0f) {
        return false;
    }
    n_steps++;
    confidence *= prob;
    return confidence < p_min;
}

// ggml asks on its first thread after each node, and that thread has written the probability when it is one's turn.
ggml_status DraftEngine::compute(const DraftGraph & g, EarlyStop * stop) {
    if (!stop || !set_abort_callback_) {
        return ggml_backend_graph_compute(backend_.get(), g.gf);
    }
    stop->graph = &g;
    const std::vector<float> unknown(g.shape.n_steps, -1.0f);
    ggml_backend_tensor_set(g.probs, unknown.data(), 0, unknown.size() * sizeof(float));
    set_abort_callback_(backend_.get(), [](void * s) { return ((EarlyStop *) s)->is_due(); }, stop);
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), g.gf);
    set_abort_callback_(backend_.get(), nullptr, nullptr);
    return status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status;
}

const DraftGraph & DraftEngine::run(const DraftRows & rows, int32_t n_steps, EarlyStop * stop) {
    if (rows.n > MAX_ROWS) {
        run(rows.first_of(MAX_ROWS), 0);
        return run(rows.after(MAX_ROWS), n_steps, stop);
    }
    const int32_t end = slot_of(rows.row) + rows.n + std::max(0, n_steps - 1);
    if (end > n_ctx()) {
        throw Error(EAGLE_ERR_CONTEXT_FULL,
                    format("position %d is past the draft's memory of %lld", end, (long long) n_ctx()));
    }
    DraftGraph & g = graph({rows.n, n_steps, std::min(round_up(end, KV_STEP), (int32_t) n_ctx())});
    set_inputs(g, rows);
    const ggml_status status = compute(g, stop);
    if (status != GGML_STATUS_SUCCESS) {
        throw Error(status == GGML_STATUS_ABORTED ? EAGLE_ERR_ABORTED : EAGLE_ERR_COMPUTE,
                    format("the draft's graph failed: %s", ggml_status_to_string(status)));
    }
    return g;
}

void DraftEngine::look_up(const DraftRows & rows) {
    const ggml_tensor * table = model_->tok_embd;
    const auto * traits = ggml_get_type_traits(table->type);
    std::vector<char> row(table->nb[1]);
    embeddings_.resize(rows.n * model_->n_embd);
    for (int32_t i = 0; i < rows.n; i++) {
        float * out = embeddings_.data() + i * model_->n_embd;
        if (rows.embeddings) {
            std::copy_n(rows.embeddings + i * rows.width, model_->n_embd, out);
            continue;
        }
        ggml_backend_tensor_get(table, row.data(), rows.tokens[i] * table->nb[1], row.size());
        if (table->type == GGML_TYPE_F32) {
            std::memcpy(out, row.data(), row.size());
        } else {
            traits->to_float(row.data(), out, model_->n_embd);
        }
    }
}

// Row r sees the filled ones of the n_window slots up to its own, slot + r.
void DraftEngine::set_mask(const DraftGraph & g, ggml_tensor * mask, int32_t slot, int32_t n_window) {
    if (!mask->buffer) {  // no layer uses it
        return;
    }
    const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0f), hidden = ggml_fp32_to_fp16(-INFINITY);
    mask_.assign((size_t) g.n_rows() * g.shape.n_kv, hidden);
    for (int32_t r = 0; r < g.n_rows(); r++) {
        const auto row = mask_.begin() + (size_t) r * g.shape.n_kv;
        const int32_t end = slot + r + 1;
        std::fill(row + std::max(std::min(first_, slot), end - n_window), row + end, visible);
    }
    ggml_backend_tensor_set(mask, mask_.data(), 0, ggml_nbytes(mask));
}

// Row i of `rows` or after them stands at `place`, where `stride` rows stand side by side. It is rotated by the place
// of the target's row, part by part, or by the number of its slot.
void DraftEngine::place_row(const DraftGraph & g, const DraftRows & rows, int32_t i, int32_t place, int32_t stride) {
    const int32_t row = rows.row + i;
    slots_[place] = slot_of(row);
    if (g.n_parts == 1) {
        positions_[place] = slot_of(row);
        return;
    }
    int32_t * parts = &positions_[(place - place % stride) * g.n_parts + place % stride];
    for (int32_t part = 0; part < RowPositions::N_PARTS; part++) {
        parts[part * stride] = rows.positions.at(row, part) + model_->lead;
    }
    parts[RowPositions::N_PARTS * stride] = model_->rope.rest_is_time ? parts[0] : 0;
}

void DraftEngine::set_inputs(const DraftGraph & g, const DraftRows & rows) {
    positions_.assign(g.n_parts * g.n_places(), 0);
    slots_.assign(g.n_places(), 0);
    for (int32_t i = 0; i < rows.n; i++) {
        place_row(g, rows, i, i, rows.n);
    }
    for (int32_t step = 0; step < g.shape.n_steps; step++) {
        const int32_t i = rows.n - 1 + step;
        place_row(g, rows, i, g.place_alone(i), 1);
    }
    features_->lines(rows.first, rows.n, lines_);
    look_up(rows);
    set_mask(g, g.mask, slot_of(rows.row), g.shape.n_kv);
    set_mask(g, g.mask_window, slot_of(rows.row), model_->n_window);
    auto set = [](ggml_tensor * t, const void * data) {
        if (t->buffer) {  // an input that the graph does not use is not allocated
            ggml_backend_tensor_set(t, data, 0, ggml_nbytes(t));
        }
    };
    set(g.state_lines, lines_.data());
    set(g.embeddings, embeddings_.data());
    set(g.positions, positions_.data());
    set(g.slots, slots_.data());
}

int32_t DraftEngine::draft(const DraftRows & rows, int32_t n_steps, float p_min, llama_token * ids, float * probs) {
    EarlyStop stop = {p_min};
    const DraftGraph & g = run(rows, n_steps, p_min > 0.0f ? &stop : nullptr);
    last_ = &g;
    n_drafted_ = stop.graph ? stop.n_steps : n_steps;
    for (int32_t step = 0; step < n_drafted_; step++) {
        int32_t id;
        ggml_backend_tensor_get(g.ids[step], &id, 0, sizeof id);
        if (id < 0 || id >= model_->n_vocab_draft) {
            throw Error(EAGLE_ERR_COMPUTE, format("the draft on %s chose token %d of %lld: its logits are no numbers",
                                                  device(), id, (long long) model_->n_vocab_draft));
        }
        ids[step] = model_->target_id(id);
    }
    ggml_backend_tensor_get(g.probs, probs, 0, n_drafted_ * sizeof(float));
    return n_drafted_;
}

void DraftEngine::read_step(int32_t step, float * logits, float * hidden) const {
    if (!last_ || step < 0 || step >= n_drafted_) {
        throw Error(EAGLE_ERR_ARGUMENT, format("step %d was not drafted", step));
    }
    if (logits) {
        ggml_backend_tensor_get(last_->logits[step], logits, 0, ggml_nbytes(last_->logits[step]));
    }
    if (hidden) {
        ggml_backend_tensor_get(last_->hidden[step], hidden, 0, ggml_nbytes(last_->hidden[step]));
    }
}

}  // namespace eagle
