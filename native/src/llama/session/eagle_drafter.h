// The drafter of a target context's sequences: an engine over the target's states (eagle_feature_drafter.h), a small
// model of its own (eagle_small_drafter.h), or an assistant (eagle_assistant_drafter.h). Sessions and sets of drafts
// use this interface alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "eagle.h"

struct ggml_tensor;

namespace eagle {

class Sequence;

// A sequence to draft for, and the token that was sampled last. Output: n_steps ids and probabilities (null: not
// wanted), and the number of tokens before the cumulative probability falls below p_min.
struct DraftTask {
    Sequence & rows;
    llama_token id_last;
    llama_token * ids;
    float * probs;
    int32_t n_out;
};

class Drafter {
  public:
    virtual ~Drafter() = default;

    virtual const char * kind() const = 0;  // static storage
    virtual const char * device() const = 0;
    virtual const char * notice() const { return ""; }  // reason for another device than that of its weights
    virtual double bytes_read() const = 0;              // of weights, for each drafted token
    virtual int64_t n_graphs() const { return 0; }      // built so far

    // Number of the last rows that it attends to, chosen by acceptance; 0: all, or a number that it does not know.
    virtual int32_t window() const { return 0; }
    virtual void fix_window(int32_t) {}

    virtual int64_t n_vocab_draft() const = 0;
    virtual llama_token target_id(int32_t draft_id) const { return draft_id; }

    // Copies results of step `step` of the last draft for its first sequence: logits {n_vocab_draft}, and the hidden
    // state that the next step read. Null: not wanted.
    virtual void read_step(int32_t step, float * logits, float * hidden) const = 0;

    // Width of the rows of an image that it reads; 0: it reads tokens alone.
    virtual int64_t n_embd_image() const { return 0; }

    // Adds sequence `seq` of the target's context. It must not outlive the drafter.
    virtual std::unique_ptr<Sequence> add_sequence(llama_seq_id seq) = 0;

    // Returns the states of the target's last graph that its sequences stage, for n_rows rows.
    virtual std::vector<ggml_tensor *> states_of_last_graph(int32_t n_rows) const {
        (void) n_rows;
        return {};
    }

    // Drafts up to n_steps tokens for different sequences, which have room for them.
    virtual void draft(std::vector<DraftTask> & tasks, int32_t n_steps, float p_min) = 0;
};

// Returns the number of tokens before the cumulative probability falls below p_min.
int32_t n_confident(const float * probs, int32_t n, float p_min);

// Makes the drafter that fits the model, for up to n_seq sequences.
std::unique_ptr<Drafter> make_drafter(llama_context & ctx, const llama_model & draft,
                                      const eagle_session_params & params, int32_t n_seq);

}  // namespace eagle
