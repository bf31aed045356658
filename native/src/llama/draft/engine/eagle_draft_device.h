// The device that a draft runs on: its backend, the memory allocated there, and the execution of graphs.
#pragma once

#include <vector>

#include "eagle_draft_graph.h"
#include "ggml-cpp.h"

namespace eagle {

// Stops a running graph once the cumulative probability of every part is below p_min.
class EarlyStop {
  public:
    EarlyStop(const DraftGraph & graph, float p_min);

    // Reads the probabilities that the graph has computed so far.
    bool is_due();

    int32_t n_steps() const { return n_steps_; }  // steps computed so far

  private:
    const DraftGraph & graph_;
    float p_min_;
    int32_t n_steps_ = 0;
    std::vector<float> confidence_;  // per part
};

class DraftDevice {
  public:
    // Throws EAGLE_ERR_MEMORY if the backend does not start.
    DraftDevice(ggml_backend_dev_t device, int32_t n_threads);

    ggml_backend_t backend() const { return backend_.get(); }
    const char * name() const { return ggml_backend_name(backend_.get()); }
    bool is_cpu() const;
    bool is_remote() const;
    size_t alignment() const { return ggml_backend_get_alignment(backend_.get()); }

    // True if graphs on this device can use the weight without a copy.
    bool can_read(const ggml_tensor & weight) const;
    bool supports(const ggml_tensor & node) const { return ggml_backend_supports_op(backend_.get(), &node); }

    // Gives the tensor a zeroed buffer of its own, which lives as long as the device.
    void allocate(ggml_tensor * tensor);
    void allocate(DraftGraph & graph);

    // Runs the graph and returns the number of drafted steps: fewer than the graph has if p_min > 0 stopped it.
    int32_t compute(const DraftGraph & graph, float p_min);

    // Throws if the device is an RPC server that has disconnected: its results are not valid.
    void require_connected() const;

  private:
    ggml_backend_ptr backend_;
    std::vector<ggml_backend_buffer_ptr> buffers_;
    ggml_backend_set_abort_callback_t set_abort_callback_ = nullptr;  // null: the backend cannot abort a graph

    ggml_status compute(const DraftGraph & graph, EarlyStop & stop);
};

ggml_context_ptr context_for(size_t n_tensors);

}  // namespace eagle
