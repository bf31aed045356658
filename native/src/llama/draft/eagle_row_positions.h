// Where the rows of a sequence stand. A token's row stands one position after the row before it; rows of an image bring
// positions of their own, with M-RoPE fewer than there are rows.
#pragma once

#include <cstdint>
#include <vector>

#include "llama.h"

namespace eagle {

class RowPositions {
  public:
    static constexpr int32_t N_PARTS = 3;  // time, height, width

    // Of a row that is there or comes later, if all that come are tokens. The row of zeros before a sequence is -1.
    llama_pos at(int32_t row, int32_t part = 0) const;

    // The row at this position, or the one that comes there if all that come are tokens; within an image the row after
    // it, which stands elsewhere.
    int32_t row_at(llama_pos pos) const;

    // Does a row with these parts continue the image that ends before `row`?
    bool continues(int32_t row, const llama_pos * parts) const;

    // n rows from `row` on: `parts` [n, N_PARTS] of each, and the position of the row after them.
    void add(int32_t row, const std::vector<llama_pos> & parts, llama_pos end);

    // The first n_rows stay.
    void truncate(int32_t n_rows);
    void clear() { images_.clear(); }

    // Can rows be cut before this one? Rows of an image stand at one time and go together.
    bool is_cut(int32_t row) const { return at(row) > at(row - 1); }

    // Is a row of an image at or after this one?
    bool has_image_from(int32_t row) const { return !images_.empty() && images_.back().end_row() > row; }

    std::vector<int32_t> save() const;
    // What save() gave for a sequence of n_rows. False: it did not, and nothing is known.
    bool load(const std::vector<int32_t> & saved, int32_t n_rows);

  private:
    struct Image {
        int32_t row;
        llama_pos end;
        std::vector<llama_pos> parts;

        int32_t size() const { return (int32_t) parts.size() / N_PARTS; }
        int32_t end_row() const { return row + size(); }
    };

    std::vector<Image> images_;  // by row

    bool fits(const Image & next, int32_t n_rows) const;
};

}  // namespace eagle
