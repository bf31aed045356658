// Boundaries (eagle_features.h) of the target's last graph, read on its device.
#pragma once

#include <cstdint>
#include <vector>

struct ggml_tensor;
struct llama_context;

namespace eagle {

// Id of an additional state: the output of the final norm, which the output head reads.
constexpr int32_t FINAL_NORM = -1;

// While the object exists, the boundaries `ids` are outputs of the context's graphs. They are copied to the host only
// if eagle_capture_layer is enabled too. Throws EAGLE_ERR_INCOMPATIBLE if the target does not publish one of them.
class Boundaries {
  public:
    Boundaries(llama_context & ctx, const std::vector<int32_t> & ids);
    ~Boundaries();
    Boundaries(const Boundaries &) = delete;
    Boundaries & operator=(const Boundaries &) = delete;

    // Returns a tensor {n_embd, n_rows} for each boundary, valid until the context computes again. The last graph must
    // have finished and have n_rows rows.
    std::vector<ggml_tensor *> of_last_graph(int32_t n_rows) const;

  private:
    llama_context & ctx_;
    const std::vector<int32_t> & ids_;

    void capture(int32_t id);
    void release();
};

}  // namespace eagle
