#include "eagle_draft_device.h"

#include <algorithm>
#include <string>

#include "eagle_error.h"
#include "eagle_lost_server.h"
#include "ggml-backend.h"

namespace eagle {

ggml_context_ptr context_for(size_t n_tensors) {
    ggml_init_params params = {};
    params.mem_size = n_tensors * ggml_tensor_overhead();
    params.no_alloc = true;
    return ggml_context_ptr(ggml_init(params));
}

// Probabilities below 0 mark those that are not computed yet.
EarlyStop::EarlyStop(const DraftGraph & graph, float p_min)
    : graph_(graph), p_min_(p_min), confidence_(graph.shape.parts.size(), 1.0f) {
    const std::vector<float> unknown(graph.shape.n_steps * graph.shape.parts.size(), -1.0f);
    ggml_backend_tensor_set(graph.probs, unknown.data(), 0, unknown.size() * sizeof(float));
}

bool EarlyStop::is_due() {
    if (n_steps_ == graph_.shape.n_steps) {
        return false;
    }
    const size_t n = confidence_.size();
    const float * probs = (const float *) graph_.probs->data + n_steps_ * n;
    if (*std::min_element(probs, probs + n) < 0.0f) {
        return false;
    }
    n_steps_++;
    for (size_t i = 0; i < n; i++) {
        confidence_[i] *= probs[i];
    }
    return *std::max_element(confidence_.begin(), confidence_.end()) < p_min_;
}

// Only the CPU backend calls the abort callback after every node; others, if at all, call it ahead of execution.
DraftDevice::DraftDevice(ggml_backend_dev_t device, int32_t n_threads)
    : backend_(ggml_backend_dev_init(device, nullptr)) {
    if (!backend_) {
        throw Error(EAGLE_ERR_MEMORY, format("cannot start the draft on %s", ggml_backend_dev_name(device)));
    }
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    auto * set_threads =
        (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set_threads) {
        set_threads(backend_.get(), n_threads);
    }
    if (is_cpu()) {
        set_abort_callback_ = (ggml_backend_set_abort_callback_t) ggml_backend_reg_get_proc_address(
            reg, "ggml_backend_set_abort_callback");
    }
}

bool DraftDevice::is_cpu() const {
    return ggml_backend_dev_type(ggml_backend_get_device(backend_.get())) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

bool DraftDevice::is_remote() const {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_.get()));
    return ggml_backend_reg_name(reg) == std::string("RPC");
}

bool DraftDevice::can_read(const ggml_tensor & weight) const {
    return ggml_backend_supports_buft(backend_.get(), ggml_backend_buffer_get_type(weight.buffer));
}

void DraftDevice::allocate(ggml_tensor * tensor) {
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

void DraftDevice::allocate(DraftGraph & graph) {
    graph.alloc.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
    if (!ggml_gallocr_alloc_graph(graph.alloc.get(), graph.gf)) {
        throw Error(EAGLE_ERR_MEMORY, "no memory for the draft's graph");
    }
}

int32_t DraftDevice::compute(const DraftGraph & graph, float p_min) {
    int32_t n_steps = graph.shape.n_steps;
    ggml_status status;
    if (p_min > 0.0f && set_abort_callback_) {
        EarlyStop stop(graph, p_min);
        status = compute(graph, stop);
        if (status == GGML_STATUS_ABORTED) {
            status = GGML_STATUS_SUCCESS;
            n_steps = stop.n_steps();
        }
    } else {
        status = ggml_backend_graph_compute(backend_.get(), graph.gf);
    }
    if (status != GGML_STATUS_SUCCESS) {
        require_connected();
        throw Error(status == GGML_STATUS_ABORTED ? EAGLE_ERR_ABORTED : EAGLE_ERR_COMPUTE,
                    format("the draft's graph failed: %s", ggml_status_to_string(status)));
    }
    return n_steps;
}

// ggml calls the callback on its first thread after each node. That thread has also computed the probabilities, which
// are single numbers, so it can read them.
ggml_status DraftDevice::compute(const DraftGraph & graph, EarlyStop & stop) {
    set_abort_callback_(backend_.get(), [](void * s) { return ((EarlyStop *) s)->is_due(); }, &stop);
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), graph.gf);
    set_abort_callback_(backend_.get(), nullptr, nullptr);
    return status;
}

void DraftDevice::require_connected() const {
    require_server(backend_.get());
}

}  // namespace eagle
