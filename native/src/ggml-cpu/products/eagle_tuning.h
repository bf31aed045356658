// What a product may do in several ways without changing a bit of it: tried on the products of the first decodes.
#pragma once

#include <stdint.h>

#include <chrono>

#include "eagle_kernels.h"

namespace eagle {

// What is good on this kind of CPU, before anything is tried.
tuning usual_way(int64_t n_rows);

// One product of a matrix, by `tune`. While the best way is not known, each way takes its turn; end() notes its time.
class trial {
  public:
    // `bytes` of weights with `n` values a row, times n_rows rows.
    trial(const kernel & k, int64_t n, int64_t bytes, int64_t n_rows);
    void end();                                          // by one thread
    bool is_over() const { return record_ == nullptr; }  // nothing is tried: `tune` is what has been found, if anything

    tuning tune = {};

  private:
    struct record * record_ = nullptr;  // null: nothing to find out
    struct shape_record * shape_ = nullptr;
    int usual_, way_;
    std::chrono::steady_clock::time_point start_;
};

}  // namespace eagle
