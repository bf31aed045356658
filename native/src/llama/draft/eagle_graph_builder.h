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
    // All given rows (GIVEN), or one row of each part: the last given one (step 0), that of a further step.
    static constexpr int32_t GIVEN = -1;
    struct Rows {
        int32_t step, count;
        bool are_last() const { return step != GIVEN; }
    };

    const DraftModel & m;
    const DraftTensors & tensors;
    DraftGraph & g;
    ggml_context * ctx;

    // States of the target {A*T, n_in} -> what decode() takes as hidden.
    virtual ggml_tensor * enter(ggml_tensor * states) = 0;

    // All layers over `rows`: stores their K and V, and returns each part's last row's output, or null when only K and
    // V are wanted. embedding {H, rows}; hidden: from enter(), or what the step before fed on.
    virtual ggml_tensor * decode(ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output) = 0;

    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight);
    ggml_tensor * linear(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x);
    // Of the given rows: {width, parts}, and as what they are read from there on.
    ggml_tensor * last_rows(ggml_tensor * x);
    Rows one_each() const { return {0, g.shape.n_parts()}; }

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
    ggml_tensor * positions(Rows rows);
    ggml_tensor * slots(size_t part, Rows rows);
    ggml_tensor * part_of(ggml_tensor * x, size_t part, Rows rows);
    ggml_tensor * attention_of(size_t part, size_t il, ggml_tensor * q, Rows rows);
    ggml_tensor * halves_of_pairs(ggml_tensor * x);
    ggml_tensor * slots_of(ggml_tensor * kv);
    void predict(ggml_tensor * x);
    void keep_number(ggml_tensor * x, size_t n);
    ggml_tensor * output(ggml_tensor * t);
};

}  // namespace eagle
