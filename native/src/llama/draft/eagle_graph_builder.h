// What the graphs of all kinds of drafters are made of. A kind adds how target states enter and what a layer computes.
#pragma once

#include "eagle_draft_graph.h"
#include "eagle_draft_model.h"

namespace eagle {

class GraphBuilder {
  public:
    GraphBuilder(const DraftModel & model, const DraftTensors & tensors, DraftGraph & graph)
        : m(model), tensors(tensors), g(graph), ctx(graph.ctx.get()) {}
    virtual ~GraphBuilder() = default;

    void build();

  protected:
    // Of the graph's rows.
    struct Rows {
        int32_t first, count;
    };

    const DraftModel & m;
    const DraftTensors & tensors;
    DraftGraph & g;
    ggml_context * ctx;

    // States of the target {A*T, n_in} -> what decode() takes as hidden.
    virtual ggml_tensor * enter(ggml_tensor * states) = 0;

    // All layers over `rows`: stores their K and V, and returns the last row's output, or null when only K and V are
    // wanted. embedding {H, rows}; hidden: from enter(), or what the step before fed on.
    virtual ggml_tensor * decode(ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output) = 0;

    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight);
    ggml_tensor * linear(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x);
    ggml_tensor * last_row(ggml_tensor * x);

    // {head, heads, rows}: normed, where there is a norm, and rotated.
    ggml_tensor * heads(ggml_tensor * x, ggml_tensor * head_norm, Rows rows);
    ggml_tensor * split_heads(ggml_tensor * x, int64_t n_head, Rows rows);

    // k {head, heads, rows} rotated, v {heads * head, rows}.
    void store_kv(size_t il, ggml_tensor * k, ggml_tensor * v, Rows rows);

    // q {head, heads, rows} rotated -> {heads * head, rows}.
    ggml_tensor * attention(size_t il, ggml_tensor * q, Rows rows);

    ggml_tensor * swiglu(ggml_tensor * gate, ggml_tensor * up) { return ggml_swiglu_split(ctx, gate, up); }

  private:
    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1);
    void make_inputs();
    ggml_tensor * states();
    ggml_tensor * embed(ggml_tensor * draft_id);
    ggml_tensor * places(ggml_tensor * x, Rows rows, int32_t n_parts = 1);
    ggml_tensor * halves_of_pairs(ggml_tensor * x);
    ggml_tensor * slots_of(ggml_tensor * kv);
    void predict(ggml_tensor * x);
    ggml_tensor * output(ggml_tensor * t);
};

}  // namespace eagle
