// The draft engine: weights where llama.cpp's loader put them, one backend, its own one-layer memory, cached graphs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "eagle.h"
#include "eagle_draft_graph.h"
#include "eagle_draft_model.h"
#include "eagle_feature_store.h"
#include "eagle_following_head.h"
#include "eagle_row_positions.h"

namespace eagle {

// Consecutive rows of a sequence: row i takes the states of the target's row `row` + i, which are in row first + i of
// the sequence's store, and what the target read in the row after that: tokens[i], or in an image embeddings[i *
// width], its first H numbers.
struct DraftRows {
    const llama_token * tokens;
    int32_t n;
    int32_t row;
    const RowPositions * positions;
    int32_t seq;
    int32_t first = 0;
    const float * embeddings = nullptr;  // null: tokens
    int64_t width = 0;

    DraftRows first_of(int32_t n_rows) const;
    DraftRows after(int32_t n_taken) const;
};

struct DraftParams {
    int64_t n_ctx;
    int32_t n_threads;
    ggml_type type_kv;
    int32_t n_rows_kept;    // of features, while they wait
    int32_t n_rows_staged;  // that one decode adds at most
    // GGUFs of the target and the draft, null when unknown: for weights that a CPU keeps rearranged.
    const char * path_tgt;
    const char * path_dft;
    int64_t n_vocab_draft;              // rows of a head that follows the text; 0: the head as it is
    std::vector<llama_token> base_ids;  // for that head
};

// Watches a graph while it runs: has a drafted token made the whole draft too improbable, for every part?
struct EarlyStop {
    float p_min;
    const DraftGraph * graph = nullptr;
    int32_t n_steps = 0;  // drafted so far
    std::vector<float> confidence;

    bool is_due();
};

// What draft() is to write for one part: n_steps entries each.
struct DraftOut {
    llama_token * ids;
    float * probs;
};

class DraftEngine {
  public:
    DraftEngine(const llama_model & draft, const llama_context & target, const DraftParams & params);

    const DraftModel & model() const { return *model_; }
    int64_t n_ctx() const { return n_ctx_; }
    int64_t n_graphs() const { return n_graphs_; }
    const char * device() const { return ggml_backend_name(backend_.get()); }
    // Why it is not the device that the draft was loaded to; empty: it is.
    const std::string & notice() const { return notice_; }

    // Of weights, for each drafted token.
    double bytes_read() const;

    // Sequence 0 is there from the beginning; adds one and returns its number.
    int32_t add_sequence();

    // The rows that take() and draft() name.
    FeatureStore & features(int32_t seq) { return *sequences_[seq].features; }
    const FeatureStore & features(int32_t seq) const { return *sequences_[seq].features; }

    // As before the first token of a sequence: an empty memory, and the rows of zeros that stand before it.
    void restart(int32_t seq);

    // Where the row of the states of the target's row keeps its K and V.
    int32_t slot_of(int32_t row) const { return row + model_->lead; }

    // The text uses these tokens: a head that follows it gets rows for them.
    void note(const llama_token * ids, int32_t n);

    // Takes the rows into the memory.
    void take(const DraftRows & rows) { run({rows}, 0); }

    // Takes the rows in and drafts up to n_steps tokens after each part's last; ids are the target's. All in one graph,
    // which a CPU leaves where the cumulative probability of every part is below p_min. Returns the tokens drafted,
    // those included. The parts are of different sequences.
    int32_t draft(const std::vector<DraftRows> & parts, int32_t n_steps, float p_min,
                  const std::vector<DraftOut> & out);

    const DraftMemory & memory(int32_t seq) const { return tensors_.places[seq].memory; }
    // Slots before `first` are not seen any more.
    void forget_slots(int32_t seq, int32_t first) { sequences_[seq].first = first; }
    int32_t first_slot(int32_t seq) const { return sequences_[seq].first; }

    // Of the last draft(), its first part: logits over the draft's vocabulary {D} and the hidden state fed on {H};
    // null: not wanted.
    void read_step(int32_t step, float * logits, float * hidden) const;

  private:
    struct Sequence {
        std::unique_ptr<FeatureStore> features;
        ggml_context_ptr ctx;  // of its memory
        int32_t first = 0;     // slots before it were never filled
    };

    const llama_model & draft_;
    DraftParams params_;
    std::unique_ptr<DraftModel> model_;
    std::string notice_;
    ggml_backend_ptr backend_;
    int64_t n_ctx_;
    std::vector<Sequence> sequences_;
    ggml_context_ptr ctx_;  // the look-up's tensors and mirrored weights
    std::vector<ggml_backend_buffer_ptr> buffers_;
    std::unique_ptr<FollowingHead> following_;  // null: the head is fixed
    DraftTensors tensors_;
    ggml_backend_set_abort_callback_t set_abort_callback_ = nullptr;  // null: the backend runs graphs to their end
    std::map<DraftShape, std::unique_ptr<DraftGraph>> graphs_;  // all of one n_kv: a text that grows needs no others
    const DraftGraph * last_ = nullptr;
    int32_t n_drafted_ = 0;  // steps of last_ that were computed
    int64_t n_graphs_ = 0;

    std::vector<float> embeddings_;
    std::vector<int32_t> positions_;
    std::vector<int64_t> slots_;
    std::vector<int32_t> lines_;
    std::vector<ggml_fp16_t> mask_;

    void place(ggml_backend_dev_t device);
    const ggml_tensor * first_unsupported() const;
    void make_backend(ggml_backend_dev_t device);
    void make_memory(DraftMemory & memory, ggml_context * ctx);
    void make_lookup();
    void copy_embeddings();
    void make_following_head();
    void set_lookup(int32_t draft_id);
    void mirror(ggml_tensor *& tensor);
    WeightRows rows_of(const ggml_tensor & weight) const;
    const char * path_of(const ggml_tensor & weight) const;
    bool reachable(const ggml_tensor * tensor) const;
    void allocate(ggml_tensor * tensor);

    const DraftGraph & run(std::vector<DraftRows> parts, int32_t n_steps, EarlyStop * stop = nullptr);
    ggml_status compute(const DraftGraph & graph, EarlyStop * stop);
    DraftGraph & graph(const DraftShape & shape);
    void set_inputs(const DraftGraph & graph, const std::vector<DraftRows> & parts);
    void set_places(const DraftGraph & graph, const std::vector<DraftRows> & parts);
    void set_position(const DraftGraph & graph, const DraftRows & rows, int32_t i, int32_t group, int32_t place,
                      int32_t n);
    void set_mask(const DraftGraph & graph, ggml_tensor * mask, const std::vector<DraftRows> & parts, int32_t n_window);
    void look_up(const DraftRows & rows);
};

}  // namespace eagle
