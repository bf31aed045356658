// Builder of draft graphs. Each kind of draft derives from it and adds the projection of target states and the layers.
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
    // All given rows (GIVEN), the blocks of all parts (BLOCK), or rows of each part: the last given ones (step 0), or
    // one of a later step.
    static constexpr int32_t GIVEN = -1, BLOCK = -2;
    struct Rows {
        int32_t step, count;
        bool are_last() const { return step >= 0; }
    };

    const DraftModel & m;
    const DraftTensors & tensors;
    DraftGraph & g;
    ggml_context * ctx;

    // Projects states of the target {A*T, n_in} to the input `hidden` of decode() {H, n_given}.
    virtual ggml_tensor * project(ggml_tensor * states) = 0;

    // Applies all layers to `rows`: stores their K and V, and returns the output of each part's last rows, or null if
    // `output` is false. A block draft stores K and V of `rows`, and returns the output of the blocks. embedding {H,
    // rows}; hidden: from project(), or the output of the previous step.
    virtual ggml_tensor * decode(ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output) = 0;

    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight);
    ggml_tensor * linear(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x);
    // Returns the last given rows of each part {width, parts * n_last}; last_of_parts() describes these rows.
    ggml_tensor * last_rows(ggml_tensor * x);
    Rows last_of_parts() const { return {0, g.shape.n_parts() * g.n_last()}; }

    // Normalizes (unless head_norm is null) and rotates x {head, heads, rows}.
    ggml_tensor * heads(ggml_tensor * x, ggml_tensor * head_norm, Rows rows);
    ggml_tensor * split_heads(ggml_tensor * x, int64_t n_head, Rows rows);

    // k {head, heads, rows} rotated, v {heads * head, rows}.
    void store_kv(size_t il, ggml_tensor * k, ggml_tensor * v, Rows rows);

    // q {head, heads, rows} rotated -> {heads * head, rows}.
    ggml_tensor * attention(size_t il, ggml_tensor * q, Rows rows);

    // Chooses tokens by the logits {D, n} of rows with these hidden states {H, n}, and records them.
    virtual void choose(ggml_tensor * logits, ggml_tensor * hidden);

    // Records chosen tokens, ids of the draft's vocabulary {n}, with their probabilities {n}: n is the number of parts,
    // for several steps at once a multiple.
    void record(ggml_tensor * logits, ggml_tensor * id, ggml_tensor * prob, ggml_tensor * hidden);

    ggml_tensor * best_of(ggml_tensor * x);                        // {k, n} -> {n} I32
    ggml_tensor * entry_of(ggml_tensor * x, ggml_tensor * index);  // {k, n}, {n} I32 -> {n}
    ggml_tensor * columns_of_step(ggml_tensor * x, int64_t i);

    // Factor 0: none.
    ggml_tensor * scaled(ggml_tensor * x, float factor) { return factor != 0.0f ? ggml_scale(ctx, x, factor) : x; }
    ggml_tensor * capped(ggml_tensor * logits, float cap) {
        return cap > 0.0f ? ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, logits, 1.0f / cap)), cap) : logits;
    }
    // Norm after a part of a layer; null: none.
    ggml_tensor * after(ggml_tensor * x, ggml_tensor * weight) { return weight ? norm(x, weight) : x; }
    ggml_tensor * swiglu(ggml_tensor * gate, ggml_tensor * up) { return ggml_swiglu_split(ctx, gate, up); }

    // Attention sinks {heads} of a layer; null: none.
    virtual ggml_tensor * sinks_of(size_t) { return nullptr; }

    // Adjusts the logits {D, n}.
    virtual ggml_tensor * adjust(ggml_tensor * logits) { return logits; }

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
    ggml_tensor * heads_of_cache(ggml_tensor * kv, size_t part);
    ggml_tensor * rows_to_predict(ggml_tensor * x);
    void predict(ggml_tensor * x);
    void write_number(ggml_tensor * x, size_t n);
    ggml_tensor * output(ggml_tensor * t);
};

}  // namespace eagle
