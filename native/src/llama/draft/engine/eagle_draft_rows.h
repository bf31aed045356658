// Input rows of a draft: states of the target, and the token or image row that follows each of them.
#pragma once

#include "eagle_row_positions.h"

namespace eagle {

// Consecutive rows of one sequence. Row i reads the target states of target row `row` + i, stored in row first + i of
// the sequence's FeatureStore, and the input of the target row after that: tokens[i], or for an image the first H
// numbers of embeddings[i * width].
struct DraftRows {
    const llama_token * tokens;
    int32_t n;
    int32_t row;
    const RowPositions * positions;
    int32_t seq;
    int32_t first = 0;
    const float * embeddings = nullptr;  // null: tokens
    int64_t width = 0;
    int32_t window = 0;  // slots that a row attends to, its own included; 0: as many as the engine lets rows attend to

    // The first n_rows rows.
    DraftRows take(int32_t n_rows) const {
        DraftRows some = *this;
        some.n = n_rows;
        return some;
    }

    // All rows after the first n_rows.
    DraftRows skip(int32_t n_rows) const {
        DraftRows rest = *this;
        rest.n -= n_rows;
        rest.row += n_rows;
        rest.first += n_rows;
        rest.tokens = tokens ? tokens + n_rows : nullptr;
        rest.embeddings = embeddings ? embeddings + n_rows * width : nullptr;
        return rest;
    }
};

}  // namespace eagle
