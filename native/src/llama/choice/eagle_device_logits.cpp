#include "eagle_device_logits.h"

#include <algorithm>
#include <cstring>

#include "eagle_lost_server.h"
#include "llama-graph.h"

namespace {

constexpr int64_t MAX_ROWS = 17;   // rows of a round: the longest draft and the token before it
constexpr int MAX_NEW_NODES = 32;  // upper bound of the nodes of choice_nodes, views included

// Returns true for GPUs, including Metal, and integrated GPUs (IGPU). Devices that split tensors cannot be read by
// rows.
bool is_gpu(ggml_backend_dev_t dev) {
    const auto type = dev ? ggml_backend_dev_type(dev) : GGML_BACKEND_DEVICE_TYPE_CPU;
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

bool has_room(llm_graph_result & graph) {
    ggml_context * ctx = graph.get_ctx();
    const size_t needed = MAX_NEW_NODES * ggml_tensor_overhead();
    return ggml_graph_n_nodes(graph.get_gf()) + MAX_NEW_NODES <= ggml_graph_size(graph.get_gf()) &&
           ggml_used_mem(ctx) + needed <= ggml_get_mem_size(ctx);
}

// Excludes views, because only their source tensor can be protected from being overwritten.
bool is_plain(const ggml_tensor * logits) {
    return logits && !logits->view_src && logits->type == GGML_TYPE_F32 && ggml_is_contiguous(logits) &&
           ggml_is_matrix(logits) && 1 <= logits->ne[1];
}

// Returns null if the device lacks an operation.
ggml_tensor * add_choice(llm_graph_result & graph, ggml_tensor * logits, ggml_backend_dev_t dev) {
    ggml_tensor * choice = eagle::choice_nodes(graph.get_ctx(), logits, dev);
    if (choice) {
        ggml_set_name(choice, "eagle_choice");
        ggml_set_output(choice);
        ggml_build_forward_expand(graph.get_gf(), choice);
    }
    return choice;
}

}  // namespace

void eagle_device_logits::append_choice(llm_graph_result & graph, ggml_backend_dev_t dev) {
    ggml_tensor * logits = graph.get_logits();
    choice_ = nullptr;
    if (!wanted || !is_gpu(dev) || !is_plain(logits) || logits->ne[1] > MAX_ROWS || !has_room(graph)) {
        return;
    }
    choice_ = add_choice(graph, logits, dev);
}

// A graph with 2 * MAX_ROWS rows or more needs more memory than one with the choice for MAX_ROWS, so it is not
// extended.
void eagle_device_logits::reserve_choice(llm_graph_result & graph, ggml_backend_dev_t dev) const {
    ggml_tensor * logits = graph.get_logits();
    if (wanted && is_gpu(dev) && is_plain(logits) && logits->ne[1] < 2 * MAX_ROWS && has_room(graph)) {
        const int64_t n_rows = std::min(logits->ne[1], MAX_ROWS);
        add_choice(graph, ggml_view_2d(graph.get_ctx(), logits, logits->ne[0], n_rows, logits->nb[1], 0), dev);
    }
}

bool eagle_device_logits::keep(ggml_backend_sched_t sched, const llm_graph_result & graph,
                               const std::vector<int32_t> & out_ids) {
    ggml_tensor * logits = graph.get_logits();
    if (logits->ne[1] != (int64_t) out_ids.size() || !std::is_sorted(out_ids.begin(), out_ids.end())) {
        return false;
    }
    backend_ = ggml_backend_sched_get_tensor_backend(sched, logits);
    const bool on_host = is_plain(logits) && ggml_backend_buffer_is_host(logits->buffer);
    if (!on_host && (!choice_ || ggml_backend_sched_get_tensor_backend(sched, choice_) != backend_)) {
        return false;
    }
    logits_ = logits;
    on_host_ = on_host;
    out_ids_ = out_ids;
    fetched_.assign(out_ids.size(), false);
    chosen_.clear();
    return true;
}

// The backend executes it in order, so after the graph.
void eagle_device_logits::read(const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    ggml_backend_tensor_get_async(backend_, tensor, data, offset, size);
    ggml_backend_synchronize(backend_);
    eagle::require_server(backend_);
}

float * eagle_device_logits::fetch(float * host, int64_t row) {
    if (!logits_) {
        return nullptr;
    }
    if (on_host_) {
        return (float *) ((char *) logits_->data + row * logits_->nb[1]);
    }
    float * fetched = host + row * logits_->ne[0];
    if (!fetched_[row]) {
        read(logits_, fetched, row * logits_->nb[1], logits_->nb[1]);
        fetched_[row] = true;
    }
    return fetched;
}

void eagle_device_logits::settle(float * host) {
    if (logits_ && on_host_) {
        std::memcpy(host, logits_->data, ggml_nbytes(logits_));
    } else if (logits_) {
        for (size_t row = 0; row < fetched_.size(); row++) {
            fetch(host, row);
        }
    }
    forget();
}

bool eagle_device_logits::choice(int32_t i, eagle::Choice & choice) {
    if (!logits_ || on_host_) {
        return false;
    }
    const int64_t n_rows = (int64_t) out_ids_.size();
    const int64_t row = i < 0 ? n_rows + i : std::find(out_ids_.begin(), out_ids_.end(), i) - out_ids_.begin();
    if (row < 0 || row >= n_rows || fetched_[row]) {
        return false;  // the reader of a row may have changed it
    }
    if (chosen_.empty()) {
        chosen_.resize(ggml_nelements(choice_));
        read(choice_, chosen_.data(), 0, ggml_nbytes(choice_));
    }
    return eagle::read_choice(chosen_.data(), n_rows, row, choice);
}
