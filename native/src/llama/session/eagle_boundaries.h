// Boundaries (eagle_features.h) as a session reads them: from the result of the target's last graph, on its device.
#pragma once

#include <cstdint>
#include <vector>

struct ggml_tensor;
struct llama_context;

namespace eagle {

// In addition to the boundaries: the state behind the final norm, which the head reads.
constexpr int32_t FINAL_NORM = -1;

// As long as it lives, the boundaries `ids` are outputs of the context's graphs. They are not copied to the host,
// unless eagle_capture_layer asks for that too. Throws EAGLE_ERR_INCOMPATIBLE where the target does not publish one.
class Boundaries {
  public:
    Boundaries(llama_context & ctx, const std::vector<int32_t> & ids);
    ~Boundaries();
    Boundaries(const Boundaries &) = delete;
    Boundaries & operator=(const Boundaries &) = delete;

    // Each {n_embd, n_rows} of the context's last graph, valid until the context computes again. The graph must be
    // complete, and have computed all n_rows.
    std::vector<ggml_tensor *> of_last_graph(int32_t n_rows) const;

  private:
    llama_context & ctx_;
    const std::vector<int32_t> & ids_;

    void capture(int32_t id);
    void release();
};

}  // namespace eagle
