#include "eagle_row_positions.h"

#include <algorithm>

namespace eagle {

namespace {

constexpr llama_pos MAX_POS = 1 << 30;

}  // namespace

llama_pos RowPositions::at(int32_t row, int32_t part) const {
    for (auto image = images_.rbegin(); image != images_.rend(); ++image) {
        if (row >= image->end_row()) {
            return image->end + (row - image->end_row());
        }
        if (row >= image->row) {
            return image->parts[(row - image->row) * N_PARTS + part];
        }
    }
    return row;
}

int32_t RowPositions::row_at(llama_pos pos) const {
    for (auto image = images_.rbegin(); image != images_.rend(); ++image) {
        if (pos >= image->end) {
            return image->end_row() + (pos - image->end);
        }
        if (pos > image->parts[0]) {
            return image->end_row();
        }
    }
    return pos;
}

// True for a row after the image's last one with the same time.
bool RowPositions::continues(int32_t row, const llama_pos * parts) const {
    if (images_.empty() || images_.back().end_row() != row) {
        return false;
    }
    const llama_pos * last = &images_.back().parts[(images_.back().size() - 1) * N_PARTS];
    return parts[0] == last[0] && std::lexicographical_compare(last, last + N_PARTS, parts, parts + N_PARTS);
}

void RowPositions::add(int32_t row, const std::vector<llama_pos> & parts, llama_pos end) {
    images_.push_back({row, end, parts});
}

void RowPositions::truncate(int32_t n_rows) {
    while (!images_.empty() && images_.back().row >= n_rows) {
        images_.pop_back();
    }
    if (has_image_from(n_rows)) {
        images_.back().parts.resize((n_rows - images_.back().row) * N_PARTS);
    }
}

std::vector<int32_t> RowPositions::save() const {
    std::vector<int32_t> saved;
    for (const Image & image : images_) {
        saved.insert(saved.end(), {image.row, image.size(), image.end});
        saved.insert(saved.end(), image.parts.begin(), image.parts.end());
    }
    return saved;
}

bool RowPositions::load(const std::vector<int32_t> & saved, int32_t n_rows) {
    clear();
    for (size_t i = 0; i < saved.size();) {
        const size_t n_left = saved.size() - i;
        if (n_left < 3 || saved[i + 1] < 1 || (n_left - 3) / N_PARTS < (size_t) saved[i + 1]) {
            clear();
            return false;
        }
        const auto parts = saved.begin() + (int64_t) i + 3;
        const Image next = {saved[i], saved[i + 2], {parts, parts + saved[i + 1] * N_PARTS}};
        if (!fits(next, n_rows)) {
            clear();
            return false;
        }
        i += 3 + next.parts.size();
        images_.push_back(next);
    }
    return true;
}

// True for a valid image after the known ones.
bool RowPositions::fits(const Image & next, int32_t n_rows) const {
    const int32_t first = images_.empty() ? 0 : images_.back().end_row();
    if (next.row < first || next.size() > n_rows - next.row || next.end < 1 || next.end > MAX_POS) {
        return false;
    }
    return std::all_of(next.parts.begin(), next.parts.end(), [](llama_pos pos) { return pos >= 0 && pos < MAX_POS; });
}

}  // namespace eagle
