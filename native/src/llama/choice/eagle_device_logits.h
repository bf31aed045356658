// Logits that stay on the device that computed them until a row is read.
//
// A row of a vocabulary of 248,320 is a megabyte, and greedy decoding needs one token of it. If a session enables it
// and the target's head is on a GPU, the graph of a batch with few outputs ends in the nodes of eagle_choice.h, and
// decode copies nothing: llama_get_logits_ith copies the requested row. On the CPU it returns the row of the graph
// without a copy. Rows are readable until the next decode, as in upstream: an operation that would reuse the graph's
// memory before that copies the remaining rows first.
//
// Patch 0501 calls this from llama_context, whose host buffer is `host` below: n_vocab floats per row.

#pragma once

#include <cstdint>
#include <set>  // of llama-context.h, which includes this
#include <vector>

#include "eagle_choice.h"
#include "ggml-backend.h"

class llm_graph_result;

class eagle_device_logits {
  public:
    bool wanted = false;  // a session of this context wants the choice on the device

    // Adds the choice to a graph that is built but not allocated yet. dev: the device of the target's head.
    void append_choice(llm_graph_result & graph, ggml_backend_dev_t dev);

    // Does the same for a graph that only measures the memory that later decodes need.
    void reserve_choice(llm_graph_result & graph, ggml_backend_dev_t dev) const;

    // Returns true after a decode's last graph if its logits stay on the device. out_ids: the batch's token of each
    // row. Rows of several graphs, or in another order than their tokens, do not stay.
    bool keep(ggml_backend_sched_t sched, const llm_graph_result & graph, const std::vector<int32_t> & out_ids);

    // Returns the row, and copies it to the host if needed. Null if the rows did not stay, so that `host` has them.
    float * fetch(float * host, int64_t row);

    // Copies all remaining rows to `host` and forgets the device's.
    void settle(float * host);

    // Call it if the rows are overwritten or another decode begins.
    void forget() { logits_ = nullptr; }

    // Reads the choice of row i of the last decode (as in llama_get_logits_ith). Returns false if the host has to
    // choose.
    bool choice(int32_t i, eagle::Choice & choice);

  private:
    ggml_tensor * choice_ = nullptr;  // in the graph built last; null: none
    ggml_tensor * logits_ = nullptr;  // of the last decode; null: no rows on the device
    ggml_backend_t backend_ = nullptr;
    bool on_host_ = false;
    std::vector<int32_t> out_ids_;
    std::vector<bool> fetched_;
    std::vector<float> chosen_;  // host copy of choice_; empty until it is needed

    void read(const ggml_tensor * tensor, void * data, size_t offset, size_t size);
};
