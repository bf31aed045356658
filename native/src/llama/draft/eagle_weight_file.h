// Weights as they stand in a GGUF, also of those that the loaded model keeps in an order of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ggml-backend.h"

struct llama_file;

namespace eagle {

// Has a buffer type our own layout (eagle_wide.h)?
bool is_wide(ggml_backend_buffer_type_t type);

// How many rows of a loaded weight are read and written together: a group in our own layout, else 1.
int64_t rows_together(const ggml_tensor & weight);

// Plain rows of a loaded weight: read back from where it lies, or from the file where it lies rearranged. `path` is the
// model's file, or the first of its splits; null: not known. Throws std::runtime_error when the file is needed and
// cannot be read, or has no such weight of this type and shape.
class WeightRows {
  public:
    WeightRows(const ggml_tensor & weight, const char * path);
    WeightRows(WeightRows && other);
    ~WeightRows();

    size_t row_size() const;
    // Copies row i.
    void read(int64_t i, char * row);
    std::vector<char> read_all();

  private:
    const ggml_tensor & weight_;
    int64_t n_together_ = 1;  // rows that can only be read together
    int64_t first_ = -1;      // row that together_ begins with
    std::vector<char> together_;
    std::unique_ptr<llama_file> file_;  // null: the loaded weight is read
    size_t offset_ = 0;                 // in the file

    void read_bytes(size_t offset, size_t size, char * data);
};

}  // namespace eagle
