// Share of a prompt that is computed, reported several times a second.
#pragma once

#include "eagle.h"

namespace eagle {

// Counts the operations of the decodes of an eagle_eval. The CPU backend calls count() after each of them, in the
// thread of the decode. Other backends do not. llama.cpp computes a decode in micro-batches, and enters the tokens of
// each into its memory first. Operations of the next one are expected to be as many as those of the previous one.
class Progress {
  public:
    explicit Progress(const eagle_session_params & params) : report_(params.on_progress), data_(params.progress_data) {}
    void start(int32_t n_total);
    void begin(const llama_context & ctx, int32_t n_tokens);
    void end() { n_done_ += n_tokens_; }
    bool is_wanted() const { return report_ != nullptr; }
    void count();

  private:
    void enter_batch();

    void (*report_)(float share, void * data);
    void * data_;
    int32_t n_total_ = 0;   // tokens of the eagle_eval
    int32_t n_done_ = 0;    // tokens of completed decodes
    int32_t n_tokens_ = 0;  // tokens of this decode
    int32_t start_ = 0;     // position of its first token
    const llama_context * ctx_ = nullptr;
    int32_t begin_ = 0, end_ = 0;  // the micro-batch: its range of the decode's tokens
    int32_t n_counted_ = 0;        // operations of the micro-batch so far
    int32_t n_operations_ = 0;     // of the previous micro-batch; 0: not known
    int64_t reported_us_ = 0;
};

}  // namespace eagle
