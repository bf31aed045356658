// Logits that stay where a graph computed them until somebody asks for a row.
//
// A row is a megabyte at a vocabulary of 248,320, and greedy decoding needs one token of it. While a session wants it
// and the target's head lies on a GPU, the graph of a batch with few outputs ends in the nodes of eagle_choice.h and
// decode copies nothing: llama_get_logits_ith fetches the row that it is asked for. On the CPU rows are not copied at
// all: it gives the row of the graph. Rows are readable until the next decode, as upstream's are: what would reuse the
// graph's memory before that has the others fetched first.
//
// Patch 0501 calls this from llama_context, whose host buffer is the `host` below: n_vocab floats per row.

#pragma once

#include <cstdint>
#include <set>  // of llama-context.h, which includes this
#include <vector>

#include "eagle_choice.h"
#include "ggml-backend.h"

class llm_graph_result;

class eagle_device_logits {
  public:
    bool wanted = false;  // the choice on a device, by a session of this context

    // After a graph is built and before it is allocated. dev: the device of the target's head.
    void append_choice(llm_graph_result & graph, ggml_backend_dev_t dev);

    // The same for a graph that only tells how much memory the decodes to come need.
    void reserve_choice(llm_graph_result & graph, ggml_backend_dev_t dev) const;

    // After a decode's last graph: true when the decode's logits stay where they are. out_ids: token of the batch, per
    // row. Rows that come from several graphs, or in another order than their tokens, do not stay.
    bool keep(ggml_backend_sched_t sched, const llm_graph_result & graph, const std::vector<int32_t> & out_ids);

    // The row, copied to the host unless it is there; null where the rows do not stay, so that `host` has them.
    float * fetch(float * host, int64_t row);

    // Copies all rows that `host` has not yet; the device is not asked again.
    void settle(float * host);

    // The rows are overwritten, or another decode begins.
    void forget() { logits_ = nullptr; }

    // The choice of row i of the last decode, as in llama_get_logits_ith. False: the host has to choose.
    bool choice(int32_t i, eagle::Choice & choice);

  private:
    ggml_tensor * choice_ = nullptr;  // of the graph built last; null: it has none
    ggml_tensor * logits_ = nullptr;  // of the decode whose rows stay; null: none do
    ggml_backend_t backend_ = nullptr;
    bool on_host_ = false;
    std::vector<int32_t> out_ids_;
    std::vector<bool> fetched_;
    std::vector<float> chosen_;  // choice_ on the host; empty until it is asked for

    void read(const ggml_tensor * tensor, void * data, size_t offset, size_t size);
};
