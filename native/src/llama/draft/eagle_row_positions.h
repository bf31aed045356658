// Positions of a sequence's rows. A token's row is one position after the row before it. The rows of an image have
// given M-RoPE positions, and the image occupies fewer positions than it has rows.
#pragma once

#include <cstdint>
#include <vector>

#include "llama.h"

namespace eagle {

class RowPositions {
  public:
    static constexpr int32_t N_PARTS = 3;  // time, height, width

    // Returns the position of a row. Rows after the last known one count as tokens. The row of zeros before a sequence
    // has the position -1.
    llama_pos at(int32_t row, int32_t part = 0) const;

    // Returns the row at this position; rows after the last known one count as tokens. For a position within an image,
    // returns the row after the image, whose position is different.
    int32_t row_at(llama_pos pos) const;

    // Returns true if a row with these parts continues the image that ends before `row`.
    bool continues(int32_t row, const llama_pos * parts) const;

    // Adds the n rows of an image from `row` on: `parts` [n, N_PARTS], and the position `end` of the row after them.
    void add(int32_t row, const std::vector<llama_pos> & parts, llama_pos end);

    // Keeps the first n_rows.
    void truncate(int32_t n_rows);
    void clear() { images_.clear(); }

    // Returns true if the sequence can be truncated before this row. Rows of an image share a time and stay together.
    bool is_cut(int32_t row) const { return at(row) > at(row - 1); }

    // Returns true if this row or a later one belongs to an image.
    bool has_image_from(int32_t row) const { return !images_.empty() && images_.back().end_row() > row; }

    std::vector<int32_t> save() const;
    // Restores what save() returned for a sequence of n_rows. Returns false and clears the positions if it is invalid.
    bool load(const std::vector<int32_t> & saved, int32_t n_rows);

  private:
    struct Image {
        int32_t row;
        llama_pos end;
        std::vector<llama_pos> parts;

        int32_t size() const { return (int32_t) parts.size() / N_PARTS; }
        int32_t end_row() const { return row + size(); }
    };

    std::vector<Image> images_;  // in order of their rows

    bool fits(const Image & next, int32_t n_rows) const;
};

}  // namespace eagle
