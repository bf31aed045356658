// Writes the inputs of a draft graph: features, embeddings, positions, slots and masks.
#pragma once

#include <memory>
#include <vector>

#include "eagle_draft_graph.h"
#include "eagle_draft_model.h"
#include "eagle_draft_rows.h"
#include "eagle_draft_sequence.h"
#include "ggml.h"

namespace eagle {

using DraftSequences = std::vector<std::unique_ptr<DraftSequence>>;

// Keeps its buffers between rounds.
class DraftInputs {
  public:
    // The references must outlive the object.
    DraftInputs(const DraftModel & model, const DraftSequences & sequences) : model_(model), sequences_(sequences) {}

    // Rows attend to the last `window` slots, unless their own window is set.
    void write(const DraftGraph & graph, const std::vector<DraftRows> & parts, int32_t window);

  private:
    const DraftModel & model_;
    const DraftSequences & sequences_;
    std::vector<float> embeddings_;
    std::vector<int32_t> positions_;
    std::vector<int64_t> slots_;
    std::vector<int32_t> lines_;
    std::vector<ggml_fp16_t> mask_;

    std::vector<char> row_;

    void append_embeddings(const DraftRows & rows);
    void append_embedding(llama_token id);
    void append_masks(int32_t n);
    void write_blocks(const DraftGraph & graph, const std::vector<DraftRows> & parts);
    void set_positions_and_slots(const DraftGraph & graph, const std::vector<DraftRows> & parts);
    void set_position(const DraftGraph & graph, const DraftRows & rows, int32_t i, int32_t group, int32_t place,
                      int32_t n);
    void write_mask(const DraftGraph & graph, ggml_tensor * mask, const std::vector<DraftRows> & parts, int32_t window);
};

}  // namespace eagle
