// Tests the positions of rows: consecutive for tokens, given for the rows of an image.

#include <cstdio>
#include <vector>

#include "eagle_row_positions.h"

namespace {

using eagle::RowPositions;

int n_failed = 0;

void check(bool is_right, const char * what) {
    if (!is_right) {
        std::fprintf(stderr, "failed: %s\n", what);
        n_failed++;
    }
}

// Returns time, line and column of height x width rows from position `first` on.
std::vector<llama_pos> image(llama_pos first, int height, int width) {
    std::vector<llama_pos> parts;
    for (int i = 0; i < height * width; i++) {
        parts.insert(parts.end(), {first, first + i / width, first + i % width});
    }
    return parts;
}

std::vector<llama_pos> times(const RowPositions & positions, int32_t n_rows) {
    std::vector<llama_pos> found;
    for (int32_t row = -1; row < n_rows; row++) {
        found.push_back(positions.at(row));
    }
    return found;
}

}  // namespace

int main() {
    RowPositions positions;
    positions.add(3, image(3, 2, 4), 7);  // eight rows on four positions
    positions.add(12, image(8, 1, 1), 9);
    const std::vector<llama_pos> expected = {-1, 0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 7, 8, 9, 10};
    check(times(positions, 15) == expected, "times");
    check(positions.at(9, 1) == 4 && positions.at(9, 2) == 5, "line and column");
    for (int32_t row = 0; row < 15; row++) {
        check(positions.is_cut(row) == (row <= 3 || row >= 11), "is_cut");
    }
    check(positions.has_image_from(12) && !positions.has_image_from(13), "has_image_from");
    check(positions.row_at(5) == 11 && positions.row_at(7) == 11 && positions.row_at(10) == 14, "row_at");

    RowPositions again;
    check(again.load(positions.save(), 13) && times(again, 15) == expected, "load what save gave");
    check(!again.load(positions.save(), 12), "an image behind the last row");
    check(!again.load({3, 2, 5, 3, 3}, 13), "fewer positions than rows");

    positions.truncate(11);
    check(positions.at(11) == 7 && positions.at(12) == 8, "the first image stays");
    positions.truncate(3);
    check(positions.at(12) == 12, "no image is left");
    return n_failed == 0 ? 0 : 1;
}
