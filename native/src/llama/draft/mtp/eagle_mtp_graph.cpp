// Graph of an MTP head's block: [embedding ; state] projected at every step, attention with a gate per head, a dense or
// a mixture-of-experts feed-forward.

#include <cmath>

#include "eagle_graph_builder.h"
#include "eagle_mtp_model.h"

namespace eagle {

namespace {

constexpr float MIN_SUM = 6.103515625e-5f;  // of the chosen experts' probabilities: the smallest normal F16 number

class MtpBuilder : public GraphBuilder {
  public:
    MtpBuilder(const MtpModel & model, const DraftTensors & tensors, DraftGraph & graph)
        : GraphBuilder(model, tensors, graph), m(model) {}

  private:
    const MtpModel & m;

    ggml_tensor * project(ggml_tensor * states) override { return states; }

    // Every row needs K and V, and only each part's last row the rest.
    ggml_tensor * decode(ggml_tensor * embedding, ggml_tensor * hidden, Rows rows, bool output) override {
        ggml_tensor * pair = ggml_concat(ctx, norm(embedding, m.enorm), norm(hidden, m.hnorm), 0);
        ggml_tensor * residual = scaled(m.eh_proj, pair);
        ggml_tensor * x = norm(residual, m.attn_norm);
        ggml_tensor * k = heads(split_heads(scaled(m.wk, x), m.n_head_kv, rows), m.k_norm, rows);
        store_kv(0, k, scaled(m.wv, x), rows);
        if (!output) {
            return nullptr;
        }
        if (!rows.are_last()) {
            x = last_rows(x);
            residual = last_rows(residual);
            rows = last_of_parts();
        }
        ggml_tensor * attended = ggml_add(ctx, scaled(m.wo, gated_attention(x, rows)), residual);
        ggml_tensor * normed = norm(attended, m.ffn_norm);
        return ggml_add(ctx, m.router ? expert_feed_forward(normed) : feed_forward(m.dense, normed), attended);
    }

    ggml_tensor * scaled(const MtpLinear & linear, ggml_tensor * x) {
        ggml_tensor * y = ggml_mul_mat(ctx, linear.weight, x);
        return linear.scale ? ggml_mul(ctx, y, linear.scale) : y;
    }

    ggml_tensor * gated_attention(ggml_tensor * x, Rows rows) {
        ggml_tensor * both = scaled(m.wq, x);
        ggml_tensor * gate = ggml_cont_2d(ctx, half_of_heads(both, 1), m.n_head * m.n_head_dim, rows.count);
        ggml_tensor * y = attention(0, heads(half_of_heads(both, 0), m.q_norm, rows), rows);
        return ggml_mul(ctx, y, ggml_sigmoid(ctx, gate));
    }

    // Returns the queries (half 0) or the gates (half 1) {head, heads, rows} of the product with wq.
    ggml_tensor * half_of_heads(ggml_tensor * both, int64_t half) {
        const size_t n_bytes = m.n_head_dim * sizeof(float);
        return ggml_view_3d(ctx, both, m.n_head_dim, m.n_head, both->ne[1], 2 * n_bytes, both->nb[1], half * n_bytes);
    }

    ggml_tensor * feed_forward(const MtpFeedForward & f, ggml_tensor * x) {
        return scaled(f.down, swiglu(scaled(f.gate, x), scaled(f.up, x)));
    }

    ggml_tensor * expert_feed_forward(ggml_tensor * x) {
        ggml_tensor * y = chosen_experts(x);
        if (!m.shared.up.weight) {
            return y;
        }
        ggml_tensor * gate = ggml_sigmoid(ctx, ggml_mul_mat(ctx, m.shared_gate, x));
        return ggml_add(ctx, y, ggml_mul(ctx, feed_forward(m.shared, x), gate));
    }

    // Returns the sum {H, n} of the most probable experts' outputs, weighted by their renormalized probabilities.
    ggml_tensor * chosen_experts(ggml_tensor * x) {
        const int64_t n = x->ne[1];
        ggml_tensor * probs = ggml_soft_max(ctx, ggml_mul_mat(ctx, m.router, x));
        ggml_tensor * chosen = ggml_argsort_top_k(ctx, probs, (int) m.n_expert_used);
        ggml_tensor * shares = weights_of(probs, chosen);
        ggml_tensor * row = ggml_reshape_3d(ctx, x, m.n_embd, 1, n);
        ggml_tensor * y = of_experts(m.experts.down, expert_activation(row, chosen), chosen);
        y = ggml_mul(ctx, y, ggml_reshape_3d(ctx, shares, 1, m.n_expert_used, n));
        ggml_tensor * sum = nullptr;
        for (int64_t i = 0; i < m.n_expert_used; i++) {
            ggml_tensor * one = ggml_view_2d(ctx, y, m.n_embd, n, y->nb[2], i * y->nb[1]);
            sum = sum ? ggml_add(ctx, sum, one) : one;
        }
        return m.n_expert_used > 1 ? sum : ggml_cont(ctx, sum);
    }

    // Returns weights {chosen, n} whose columns sum to 1.
    ggml_tensor * weights_of(ggml_tensor * probs, ggml_tensor * chosen) {
        const int64_t n = probs->ne[1];
        ggml_tensor * w = ggml_get_rows(ctx, ggml_reshape_3d(ctx, probs, 1, m.n_expert, n), chosen);
        w = ggml_reshape_2d(ctx, w, m.n_expert_used, n);
        w = ggml_div(ctx, w, ggml_clamp(ctx, ggml_sum_rows(ctx, w), MIN_SUM, INFINITY));
        const bool plain = m.expert_scale == 0.0f || m.expert_scale == 1.0f;
        return plain ? w : ggml_scale(ctx, w, m.expert_scale);
    }

    // {F, chosen, n}
    ggml_tensor * expert_activation(ggml_tensor * row, ggml_tensor * chosen) {
        if (!m.gate_up.weight) {
            return swiglu(of_experts(m.experts.gate, row, chosen), of_experts(m.experts.up, row, chosen));
        }
        ggml_tensor * both = of_experts(m.gate_up, row, chosen);
        return ggml_swiglu(ctx, both);
    }

    ggml_tensor * of_experts(const MtpLinear & linear, ggml_tensor * x, ggml_tensor * chosen) {
        ggml_tensor * y = ggml_mul_mat_id(ctx, linear.weight, x, chosen);
        if (!linear.scale) {
            return y;
        }
        ggml_tensor * scales = ggml_reshape_3d(ctx, linear.scale, 1, m.n_expert, 1);
        scales = ggml_repeat_4d(ctx, scales, 1, m.n_expert, chosen->ne[1], 1);
        return ggml_mul(ctx, y, ggml_get_rows(ctx, scales, chosen));
    }
};

}  // namespace

void MtpModel::build(const DraftTensors & tensors, DraftGraph & graph) const {
    MtpBuilder(*this, tensors, graph).build();
}

}  // namespace eagle
