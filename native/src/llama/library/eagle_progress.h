// Share of a prompt that is computed, reported several times a second.
#pragma once

#include "eagle.h"

namespace eagle {

// Counts the operations of the decodes of an eagle_eval. The CPU backend calls count() after each of them, in the
// thread of the decode. Other backends do not.
class Progress {
  public:
    explicit Progress(const eagle_session_params & params) : report_(params.on_progress), data_(params.progress_data) {}
    void start(int32_t n_total);
    void begin(const llama_context & ctx, int32_t n_tokens);
    void end() { n_done_ += n_tokens_; }
    bool is_wanted() const { return report_ != nullptr; }
    void count();

  private:
    void (*report_)(float share, void * data);
    void * data_;
    int32_t n_total_ = 0;   // tokens of the eagle_eval
    int32_t n_done_ = 0;    // tokens of completed decodes
    int32_t n_tokens_ = 0;  // tokens of this decode
    const llama_context * ctx_ = nullptr;
    int64_t n_counted_ = 0;
    int64_t n_operations_ = 0;  // of this decode; 0: not known yet
    int64_t reported_us_ = 0;
};

}  // namespace eagle
