// A trimmed output head whose vocabulary follows the text.
//
// Most of the weights that a draft step reads are the head over the whole vocabulary, but a draft needs rows only for
// tokens that the text is likely to use: a base list, and in reserved rows the tokens that the text has used, with the
// least recently used one replaced first. A token without a row is never drafted, so the choice of rows affects the
// acceptance rate but not the generated text.
#pragma once

#include <list>
#include <vector>

#include "eagle_draft_model.h"
#include "eagle_weight_file.h"
#include "ggml-cpp.h"

namespace eagle {

struct FollowingParams {
    int64_t n_rows;                 // see rounded()
    std::vector<llama_token> base;  // most frequent tokens first; the other tokens follow in order of their ids
};

class FollowingHead {
  public:
    // Number of rows of a head that is to have at least `n_rows`: repacked layouts need a multiple of 16.
    static int64_t rounded(int64_t n_rows);

    // Replaces the head and the vocabulary of `model`; `whole` reads the rows of the original head. A model with its
    // own vocabulary keeps some of that: other tokens never get a row.
    FollowingHead(DraftModel & model, WeightRows whole, const llama_vocab & vocab, ggml_backend_t backend,
                  const FollowingParams & params);

    // Gives these tokens rows. Returns the rows whose token has changed, in ascending order.
    std::vector<int32_t> note_used_tokens(const llama_token * ids, int32_t n);

  private:
    DraftModel & model_;
    WeightRows whole_;
    std::vector<int32_t> whole_row_of_;  // by token of the whole vocabulary: row of the original head; -1: none
    ggml_context_ptr ctx_;
    ggml_backend_buffer_ptr buffer_;
    std::vector<int32_t> row_of_;                      // by token of the whole vocabulary; -1: no row
    std::list<int32_t> reserved_;                      // rows, the least recently used first
    std::vector<std::list<int32_t>::iterator> place_;  // position of each reserved row in that list
    int32_t first_reserved_;

    void read_whole_rows();
    void choose_rows(const llama_vocab & vocab, int64_t n_rows, const std::vector<llama_token> & base);
    void make_head(ggml_backend_t backend);
    ggml_tensor * allocate(ggml_backend_buffer_type_t type);
    void mark_used(int32_t row);
    void write_rows(const std::vector<int32_t> & rows);
    void read_row(int32_t row, char * to);
};

}  // namespace eagle
