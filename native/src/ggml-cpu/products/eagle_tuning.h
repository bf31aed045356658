// Auto-tuner: picks among bit-identical variants of a matrix product by timing them during the first decodes.
#pragma once

#include <stdint.h>

#include <chrono>

#include "eagle_kernels.h"

namespace eagle {

// Returns the variant that this kind of CPU uses before the tuner has chosen one.
tuning default_tuning(int64_t n_rows);

// One product of a matrix with the variant `tune`. Until the fastest variant is known, trials alternate among all
// variants, and end() records the time.
class trial {
  public:
    // For a matrix of `bytes` bytes with rows of `n` values, times n_rows activation rows.
    trial(const kernel & k, int64_t n, int64_t bytes, int64_t n_rows);
    void end();                                          // one thread calls it
    bool is_over() const { return record_ == nullptr; }  // the choice is made, or this product is not tuned

    tuning tune = {};

  private:
    struct record * record_ = nullptr;  // null: is_over()
    struct shape_record * shape_ = nullptr;
    int default_, index_;  // into TUNINGS
    std::chrono::steady_clock::time_point start_;
};

}  // namespace eagle
