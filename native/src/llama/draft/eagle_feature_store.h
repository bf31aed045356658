// Target features that the draft has not taken in yet, on the draft's device.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml-cpp.h"

namespace eagle {

struct FeatureShape {
    int64_t n_aux;       // A
    int64_t n_embd_tgt;  // T
    int32_t n_kept;      // rows that may wait
    int32_t n_staged;    // rows that one decode adds at most
};

// A queue of rows, each of A features of width T. A decode's rows are staged behind the kept ones; those that are kept
// join them, and rows leave at the front.
class FeatureStore {
  public:
    FeatureStore(ggml_backend_t backend, const FeatureShape & shape);

    int32_t size() const { return n_; }

    // Copies rows [first, first + n) of each tensor {T, rows}, of feature 0, 1, ..., device to device where the
    // backends can. Rows staged before are lost. The backends that computed the tensors must be synchronized.
    void stage(const std::vector<ggml_tensor *> & features, int64_t first, int64_t n);
    // The first n staged rows are kept.
    void keep(int32_t n) { n_ += n; }
    // The first n rows leave; the last ones, beyond the first n.
    void drop(int32_t n);
    void truncate(int32_t n);

    // All rows leave, n rows of zeros join.
    void start(int32_t n);

    // Host memory, row by row: n rows of A*T, features side by side. write() replaces all rows.
    void read(char * rows) const;
    void write(const char * rows, int32_t n);

    // For graphs: {T, A * capacity}, and in it the A lines of each of n rows from `first` on.
    ggml_tensor * table() const { return table_; }
    void lines(int32_t first, int32_t n, std::vector<int32_t> & lines) const;

  private:
    ggml_context_ptr ctx_;
    ggml_backend_buffer_ptr buffer_;
    FeatureShape shape_;
    int64_t capacity_;  // rows
    ggml_tensor * table_;
    int64_t first_ = 0;
    int32_t n_ = 0;

    int64_t line(int64_t feature, int64_t row) const { return feature * capacity_ + row; }
    size_t offset(int64_t feature, int64_t row) const { return line(feature, row) * table_->nb[1]; }
    ggml_tensor * view(ggml_context * ctx, int64_t feature, int64_t row, int64_t n) const;
    void move_to_front();
};

}  // namespace eagle
