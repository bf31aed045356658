// Features of the target that the draft has not evaluated yet, on the draft's device.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml-cpp.h"

namespace eagle {

struct FeatureShape {
    int64_t n_aux;       // A
    int64_t n_embd_tgt;  // T
    int32_t n_pending;   // maximum number of committed rows
    int32_t n_staged;    // maximum number of rows that one decode adds
};

// Queue of rows, each with A features of width T. The rows of a decode are staged behind the queue; commit() appends
// the first of them, and pop_front() removes evaluated rows.
class FeatureStore {
  public:
    FeatureStore(ggml_backend_t backend, const FeatureShape & shape);

    int32_t size() const { return n_; }

    // Copies rows [first, first + n) of each tensor {T, rows} of feature 0, 1, ..., from device to device if the
    // backends support it. Replaces rows that were staged before. The backends that computed the tensors must be
    // synchronized.
    void stage(const std::vector<ggml_tensor *> & features, int64_t first, int64_t n);
    // Appends the first n staged rows to the queue.
    void commit(int32_t n) { n_ += n; }
    // Removes the first n rows.
    void pop_front(int32_t n);
    // Keeps the first n rows.
    void truncate(int32_t n);

    // Replaces all rows by n rows of zeros.
    void fill_with_zeros(int32_t n);

    // Copy all rows to host memory, and replace them from there. Format: n rows of A*T floats.
    void read(char * rows) const;
    void write(const char * rows, int32_t n);

    // Tensor that graphs read, {T, A * capacity}, and the line numbers in it of n rows from `first` on, A for each row.
    ggml_tensor * table() const { return table_; }
    void lines(int32_t first, int32_t n, std::vector<int32_t> & lines) const;

  private:
    ggml_context_ptr ctx_;
    ggml_backend_buffer_ptr buffer_;
    FeatureShape shape_;
    int64_t capacity_;  // in rows
    ggml_tensor * table_;
    int64_t first_ = 0;
    int32_t n_ = 0;

    int64_t line(int64_t feature, int64_t row) const { return feature * capacity_ + row; }
    size_t offset(int64_t feature, int64_t row) const { return line(feature, row) * table_->nb[1]; }
    ggml_tensor * view(ggml_context * ctx, int64_t feature, int64_t row, int64_t n) const;
    void move_to_front();
};

}  // namespace eagle
