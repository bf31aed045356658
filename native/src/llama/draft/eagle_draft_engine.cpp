#include "eagle_draft_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "eagle_bytes_read.h"
#include "eagle_error.h"
#include "eagle_lost_server.h"
#include "eagle_weight_file.h"
#include "ggml-backend.h"
#include "ggml-impl.h"
#include "llama-impl.h"
#include "llama-model.h"

namespace eagle {

namespace {

constexpr int32_t MAX_ROWS = 512;  // rows per graph: bounds the compute buffer of a long prompt
constexpr int32_t KV_STEP = 256;   // attention looks at a multiple of this: fewer graphs
constexpr size_t MAX_GRAPHS = 128;
constexpr size_t COPY_BYTES = 16 << 20;
constexpr uint64_t OUR_UIDS = 1ull << 63;  // ggml counts its own from 1

std::atomic<uint64_t> n_graphs_of_all = 0;

int32_t round_up(int32_t n, int32_t step) {
    return (n + step - 1) / step * step;
}

ggml_context_ptr context_for(size_t n_tensors) {
    ggml_init_params params = {};
    params.mem_size = n_tensors * ggml_tensor_overhead();
    params.no_alloc = true;
    return ggml_context_ptr(ggml_init(params));
}

void set_input(ggml_tensor * t, const void * data) {
    if (t->buffer) {  // an input that the graph does not use is not allocated
        ggml_backend_tensor_set(t, data, 0, ggml_nbytes(t));
    }
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
    : draft_(draft),
      params_(params),
      model_(read_draft_model(draft, target)),
      n_ctx_(round_up((int32_t) params.n_ctx, KV_STEP)) {
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

double DraftEngine::bytes_read() const {
    double sum = 0;
    for (ggml_tensor * const * weight : model_->weights()) {
        sum += *weight ? eagle::bytes_read(**weight, draft_.hparams, draft_.hparams.n_layer(), 1) : 0.0;
    }
    return sum;
}

// Everything of the draft that lies on its device.
void DraftEngine::place(ggml_backend_dev_t device) {
    sequences_.clear();
    following_.reset();
    buffers_.clear();
    tensors_ = {};
    make_backend(device);
    ctx_ = context_for(64 * model_->n_layer + 64);
    make_following_head();
    for (ggml_tensor ** weight : model_->weights()) {
        mirror(*weight);
    }
    make_lookup();
    tensors_.alignment = ggml_backend_get_alignment(backend_.get());
    add_sequence();
}

int32_t DraftEngine::add_sequence() {
    const int32_t seq = (int32_t) sequences_.size();
    const FeatureShape shape = {model_->n_states(), model_->n_embd_tgt, params_.n_rows_kept, params_.n_rows_staged};
    Sequence added;
    added.features = std::make_unique<FeatureStore>(backend_.get(), shape);
    added.ctx = context_for(2 * model_->n_layer);
    DraftPlace place;
    make_memory(place.memory, added.ctx.get());
    place.states = added.features->table();
    tensors_.places.push_back(std::move(place));
    sequences_.push_back(std::move(added));
    restart(seq);
    return seq;
}

// Of a round's graph and of a long prompt's; null: the device computes them all.
const ggml_tensor * DraftEngine::first_unsupported() const {
    const DraftShape round = {{{0, 1}}, 2, KV_STEP}, prompt = {{{0, MAX_ROWS}}, 1, (int32_t) n_ctx()};
    for (const DraftShape & shape : {round, prompt}) {
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

void DraftEngine::restart(int32_t seq) {
    features(seq).start(model_->lead);
    forget_slots(seq, 0);
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
    tensors_.is_remote = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)) == std::string("RPC");
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

// llama.cpp keeps token_embd in host memory. A draft on a GPU finds the rows in its head or the target's, if one was
// loaded from the same tensor; else it gets copies of those of its own vocabulary.
void DraftEngine::make_lookup() {
    ggml_tensor * all = model_->tok_embd;
    DraftLookup & lookup = tensors_.lookup;
    if (!reachable(all) && model_->tied) {
        lookup.table = model_->output;
        return;
    }
    if (!reachable(all) && model_->tied_head && reachable(model_->tied_head)) {
        all = model_->tied_head;
    }
    if (!reachable(all)) {
        lookup.table = ggml_new_tensor_2d(ctx_.get(), all->type, model_->n_embd, model_->n_vocab_draft);
        allocate(lookup.table);
        copy_embeddings();
        return;
    }
    lookup.table = all;
    if (!model_->d2t_id.empty()) {
        lookup.index = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_I32, 1, model_->n_vocab_draft);
        allocate(lookup.index);
        ggml_backend_tensor_set(lookup.index, model_->d2t_id.data(), 0, ggml_nbytes(lookup.index));
    }
}

// Many rows at a time: a device takes about as long for a row as for a megabyte.
void DraftEngine::copy_embeddings() {
    const size_t row_size = model_->tok_embd->nb[1];
    const int64_t n_rows = model_->n_vocab_draft, n_at_once = std::max<int64_t>(1, COPY_BYTES / row_size);
    std::vector<char> rows(std::min(n_rows, n_at_once) * row_size);
    for (int64_t first = 0; first < n_rows; first += n_at_once) {
        const int64_t n = std::min(n_at_once, n_rows - first);
        for (int64_t i = 0; i < n; i++) {
            const size_t from = model_->target_id((int32_t) (first + i)) * row_size;
            ggml_backend_tensor_get(model_->tok_embd, rows.data() + i * row_size, from, row_size);
        }
        ggml_backend_tensor_set(tensors_.lookup.table, rows.data(), first * row_size, n * row_size);
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

void DraftEngine::make_memory(DraftMemory & memory, ggml_context * ctx) {
    memory.n_ctx = n_ctx_;
    for (int64_t il = 0; il < model_->n_layer; il++) {
        for (auto * side : {&memory.k, &memory.v}) {
            const int64_t width = model_->n_head_dim * model_->n_head_kv;
            side->push_back(ggml_new_tensor_2d(ctx, params_.type_kv, width, memory.n_ctx));
            allocate(side->back());
        }
    }
}

// Graphs of several parts are rarely met again: of those only the last one stays.
DraftGraph & DraftEngine::graph(const DraftShape & shape) {
    const bool outgrown = !graphs_.empty() && graphs_.begin()->first.n_kv != shape.n_kv;
    if (outgrown || shape.n_parts() > 1 || graphs_.size() > MAX_GRAPHS) {  // each has memory of its own
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
    made->gf->uid = OUR_UIDS | n_graphs_of_all++;
    slot = std::move(made);
    return *slot;
}

// A probability below 0 has not been computed yet.
bool EarlyStop::is_due() {
    if (n_steps == graph->shape.n_steps) {
        return false;
    }
    const size_t n = confidence.size();
    const float * probs = (const float *) graph->probs->data + n_steps * n;
    if (*std::min_element(probs, probs + n) < 0.0f) {
        return false;
    }
    n_steps++;
    for (size_t i = 0; i < n; i++) {
        confidence[i] *= probs[i];
    }
    return *std::max_element(confidence.begin(), confidence.end()) < p_min;
}

// ggml asks on its first thread after each node, and that thread has written the probability when it is one's turn.
ggml_status DraftEngine::compute(const DraftGraph & g, EarlyStop * stop) {
    if (!stop || !set_abort_callback_) {
        return ggml_backend_graph_compute(backend_.get(), g.gf);
    }
    stop->graph = &g;
    stop->confidence.assign(g.shape.parts.size(), 1.0f);
    const std::vector<float> unknown(g.shape.n_steps * g.shape.parts.size(), -1.0f);
    ggml_backend_tensor_set(g.probs, unknown.data(), 0, unknown.size() * sizeof(float));
    set_abort_callback_(backend_.get(), [](void * s) { return ((EarlyStop *) s)->is_due(); }, stop);
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), g.gf);
    set_abort_callback_(backend_.get(), nullptr, nullptr);
    return status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status;
}

const DraftGraph & DraftEngine::run(std::vector<DraftRows> parts, int32_t n_steps, EarlyStop * stop) {
    DraftShape shape = {{}, n_steps, 0};
    for (DraftRows & rows : parts) {
        while (rows.n > MAX_ROWS) {
            run({rows.first_of(MAX_ROWS)}, 0);
            rows = rows.after(MAX_ROWS);
        }
        const int32_t end = slot_of(rows.row) + rows.n + std::max(0, n_steps - 1);
        if (end > n_ctx()) {
            throw Error(EAGLE_ERR_CONTEXT_FULL,
                        format("position %d is past the draft's memory of %lld", end, (long long) n_ctx()));
        }
        shape.parts.push_back({rows.seq, rows.n});
        shape.n_kv = std::max(shape.n_kv, std::min(round_up(end, KV_STEP), (int32_t) n_ctx()));
    }
    DraftGraph & g = graph(shape);
    set_inputs(g, parts);
    const ggml_status status = compute(g, stop);
    if (status != GGML_STATUS_SUCCESS) {
        require_server(backend_.get());
        throw Error(status == GGML_STATUS_ABORTED ? EAGLE_ERR_ABORTED : EAGLE_ERR_COMPUTE,
                    format("the draft's graph failed: %s", ggml_status_to_string(status)));
    }
    return g;
}

// Appends the rows' embeddings.
void DraftEngine::look_up(const DraftRows & rows) {
    const ggml_tensor * table = model_->tok_embd;
    const auto * traits = ggml_get_type_traits(table->type);
    std::vector<char> row(table->nb[1]);
    const size_t n_before = embeddings_.size();
    embeddings_.resize(n_before + rows.n * model_->n_embd);
    for (int32_t i = 0; i < rows.n; i++) {
        float * out = embeddings_.data() + n_before + i * model_->n_embd;
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

// A part's row r sees the filled ones of the n_window slots up to its own, slot + r.
void DraftEngine::set_mask(const DraftGraph & g, ggml_tensor * mask, const std::vector<DraftRows> & parts,
                           int32_t n_window) {
    if (!mask->buffer) {  // no layer uses it
        return;
    }
    const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0f), hidden = ggml_fp32_to_fp16(-INFINITY);
    mask_.assign((size_t) g.shape.n_rows() * g.shape.n_kv, hidden);
    for (size_t p = 0; p < parts.size(); p++) {
        const int32_t slot = slot_of(parts[p].row), first = std::min(first_slot(parts[p].seq), slot);
        for (int32_t r = 0; r < g.shape.n_rows(p); r++) {
            const auto row = mask_.begin() + (size_t) (g.mask_row(p) + r) * g.shape.n_kv;
            const int32_t end = slot + r + 1;
            std::fill(row + std::max(first, end - n_window), row + end, visible);
        }
    }
    ggml_backend_tensor_set(mask, mask_.data(), 0, ggml_nbytes(mask));
}

// Row i of `rows` or after them is in place `place` of a group of n that begins at `group`. It is rotated by the place
// of the target's row, part by part, or by the number of its slot.
void DraftEngine::set_position(const DraftGraph & g, const DraftRows & rows, int32_t i, int32_t group, int32_t place,
                               int32_t n) {
    const int32_t row = rows.row + i;
    if (g.n_position_parts == 1) {
        positions_[group + place] = slot_of(row);
        return;
    }
    int32_t * parts = &positions_[group * g.n_position_parts + place];
    for (int32_t part = 0; part < RowPositions::N_PARTS; part++) {
        parts[part * n] = rows.positions->at(row, part) + model_->lead;
    }
    parts[RowPositions::N_PARTS * n] = model_->rope.rest_is_time ? parts[0] : 0;
}

void DraftEngine::set_places(const DraftGraph & g, const std::vector<DraftRows> & parts) {
    positions_.assign(g.n_position_parts * g.n_positions(), 0);
    slots_.assign(g.n_slots(), 0);
    int32_t given = 0;
    for (size_t p = 0; p < parts.size(); p++) {
        const DraftRows & rows = parts[p];
        for (int32_t i = 0; i < rows.n; i++) {
            set_position(g, rows, i, 0, given++, g.shape.n_in());
            slots_[g.slot_of_part(p) + i] = slot_of(rows.row) + i;
        }
        for (int32_t step = 0; step < g.shape.n_steps; step++) {
            const int32_t i = rows.n - 1 + step;
            set_position(g, rows, i, g.position_of_step(step), (int32_t) p, g.shape.n_parts());
            slots_[g.slot_of_step(p, step)] = slot_of(rows.row) + i;
        }
    }
}

void DraftEngine::set_inputs(const DraftGraph & g, const std::vector<DraftRows> & parts) {
    std::vector<int32_t> last_rows;
    int32_t n = 0;
    embeddings_.clear();
    for (size_t p = 0; p < parts.size(); p++) {
        features(parts[p].seq).lines(parts[p].first, parts[p].n, lines_);
        set_input(g.state_lines[p], lines_.data());
        look_up(parts[p]);
        last_rows.push_back((n += parts[p].n) - 1);
    }
    set_places(g, parts);
    set_mask(g, g.mask, parts, g.shape.n_kv);
    set_mask(g, g.mask_window, parts, model_->n_window);
    set_input(g.embeddings, embeddings_.data());
    set_input(g.positions, positions_.data());
    set_input(g.slots, slots_.data());
    set_input(g.last_rows, last_rows.data());
}

int32_t DraftEngine::draft(const std::vector<DraftRows> & parts, int32_t n_steps, float p_min,
                           const std::vector<DraftOut> & out) {
    EarlyStop stop;
    stop.p_min = p_min;
    const DraftGraph & g = run(parts, n_steps, p_min > 0.0f ? &stop : nullptr);
    last_ = &g;
    n_drafted_ = stop.graph ? stop.n_steps : n_steps;
    const size_t n = parts.size();
    std::vector<int32_t> ids(n);
    std::vector<float> probs(n * n_drafted_ * (tensors_.is_remote ? 2 : 1));
    ggml_backend_tensor_get(g.probs, probs.data(), 0, probs.size() * sizeof(float));
    require_server(backend_.get());
    for (int32_t step = 0; step < n_drafted_; step++) {
        if (tensors_.is_remote) {
            std::copy_n(probs.begin() + (n_drafted_ + step) * n, n, ids.begin());
        } else {
            ggml_backend_tensor_get(g.ids[step], ids.data(), 0, n * sizeof(int32_t));
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
    return n_drafted_;
}

void DraftEngine::read_step(int32_t step, float * logits, float * hidden) const {
    if (!last_ || step < 0 || step >= n_drafted_) {
        throw Error(EAGLE_ERR_ARGUMENT, format("step %d was not drafted", step));
    }
    if (logits) {
        ggml_backend_tensor_get(last_->logits[step], logits, 0, last_->logits[step]->nb[1]);
    }
    if (hidden) {
        ggml_backend_tensor_get(last_->hidden[step], hidden, 0, last_->hidden[step]->nb[1]);
    }
}

}  // namespace eagle
