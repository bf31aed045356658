// Reads weights in the layout of their GGUF file, even if the loaded model holds them repacked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ggml-backend.h"

struct llama_file;

namespace eagle {

// Returns true for the buffer type of our repacked layout (eagle_wide.h).
bool is_wide(ggml_backend_buffer_type_t type);

// Number of rows of a loaded weight that can only be read and written together: a group in our repacked layout, else 1.
int64_t rows_together(const ggml_tensor & weight);

// Plain rows of a loaded weight, read from its buffer, or from the file if the buffer holds them in a repacked layout
// of llama.cpp. `path` is the model's file, or the first of its splits; null: unknown. Throws std::runtime_error if the
// file is needed but cannot be read, or has no such weight of this type and shape.
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
    int64_t n_together_ = 1;
    int64_t first_ = -1;                // first row in group_
    std::vector<char> group_;           // the rows read last, n_together_ of them
    std::unique_ptr<llama_file> file_;  // null: the rows are read from the weight's buffer
    size_t offset_ = 0;                 // of the weight in the file

    void read_bytes(size_t offset, size_t size, char * data);
};

}  // namespace eagle
