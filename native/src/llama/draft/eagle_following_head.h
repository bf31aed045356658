// A head with few rows, whose vocabulary follows the text.
//
// The head over the whole vocabulary is most of what a step reads. A draft needs rows only of tokens that the text is
// likely to use: a base list, and in the reserved rows those that the text has used, the least recently used giving
// way. A token without a row is never drafted, so rows decide how often drafts are accepted, never what is generated.
#pragma once

#include <list>
#include <vector>

#include "eagle_draft_model.h"
#include "eagle_weight_file.h"
#include "ggml-cpp.h"

namespace eagle {

struct FollowingParams {
    int64_t n_rows;                 // rounded up to whole groups of 16
    std::vector<llama_token> base;  // the likeliest tokens, likeliest first; the rest follows in order of their ids
};

class FollowingHead {
  public:
    // Replaces the model's head, which `whole` reads, and its vocabulary.
    FollowingHead(DraftModel & model, WeightRows whole, const llama_vocab & vocab, ggml_backend_t backend,
                  const FollowingParams & params);

    // The text uses these tokens. Returns the rows that stand for another token from now on.
    std::vector<int32_t> note(const llama_token * ids, int32_t n);

  private:
    DraftModel & model_;
    WeightRows whole_;
    ggml_context_ptr ctx_;
    ggml_backend_buffer_ptr buffer_;
    std::vector<int32_t> row_of_;                      // per token of the whole vocabulary, -1: none
    std::list<int32_t> reserved_;                      // rows, the least recently used first
    std::vector<std::list<int32_t>::iterator> place_;  // of each reserved row
    int32_t first_reserved_;

    void choose_rows(const llama_vocab & vocab, int64_t n_rows, const std::vector<llama_token> & base);
    void make_head(ggml_backend_t backend);
    ggml_tensor * allocate(ggml_backend_buffer_type_t type);
    void use(int32_t row);
    void write_rows(const std::vector<int32_t> & rows);
};

}  // namespace eagle
