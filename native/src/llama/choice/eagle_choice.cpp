#include "eagle_choice.h"

#include <cmath>

#include "eagle_first_maximum.h"

namespace eagle {

namespace {

// The host handles larger logits. Must be below FLT_MAX: ggml-cuda's ARGMAX returns -1 if no value exceeds -FLT_MAX.
constexpr float LIMIT = 3e38f;

// Builds nodes and records if the device lacks an operation.
struct Nodes {
    ggml_context * ctx;
    ggml_backend_dev_t dev;
    bool supported = true;

    ggml_tensor * add(ggml_tensor * node) {
        supported = supported && ggml_backend_dev_supports_op(dev, node);
        return node;
    }

    ggml_tensor * column(ggml_tensor * x) { return ggml_reshape_1d(ctx, x, ggml_nelements(x)); }

    ggml_tensor * append(ggml_tensor * columns, ggml_tensor * x) {
        return add(ggml_concat(ctx, columns, column(x), 1));
    }
};

float number(float x) {
    return std::isnan(x) ? -INFINITY : x;
}

}  // namespace

Choice choose(const float * logits, int64_t n) {
    const int64_t first = first_maximum(logits, n);
    const int64_t before = first_maximum(logits, first);
    const int64_t after = first + 1 + first_maximum(logits + first + 1, n - first - 1);
    const bool is_after = after < n && (first == 0 || number(logits[after]) > number(logits[before]));
    const int64_t second = is_after ? after : before;
    const float a = number(logits[first]);
    const float b = number(logits[second]);
    return {{(llama_token) first, (llama_token) second}, a == b ? 0.0f : a - b};
}

ggml_tensor * choice_nodes(ggml_context * ctx, ggml_tensor * logits, ggml_backend_dev_t dev) {
    const int64_t n_vocab = logits->ne[0];
    const int64_t n_rows = logits->ne[1];
    Nodes nodes = {ctx, dev};
    ggml_tensor * x =
        nodes.add(ggml_clamp(ctx, logits, -LIMIT, LIMIT));  // a copy, whose largest value per row is overwritten below
    ggml_tensor * first = nodes.add(ggml_argmax(ctx, x));
    ggml_tensor * scalars = ggml_reshape_3d(ctx, x, 1, n_vocab, n_rows);
    ggml_tensor * first_row = ggml_reshape_2d(ctx, first, 1, n_rows);
    ggml_tensor * best = nodes.add(ggml_get_rows(ctx, scalars, first_row));
    ggml_tensor * lowest = nodes.add(ggml_fill(ctx, best, -LIMIT));
    ggml_tensor * others = nodes.add(ggml_set_rows(ctx, scalars, lowest, first_row));
    ggml_tensor * second = nodes.add(ggml_argmax(ctx, ggml_reshape_2d(ctx, others, n_vocab, n_rows)));
    ggml_tensor * next = nodes.add(ggml_get_rows(ctx, others, ggml_reshape_2d(ctx, second, 1, n_rows)));

    ggml_tensor * result = nodes.add(ggml_cast(ctx, first, GGML_TYPE_F32));  // exact: ids are below 2^24
    result = nodes.append(result, nodes.add(ggml_cast(ctx, second, GGML_TYPE_F32)));
    result = nodes.append(result, best);
    result = nodes.append(result, next);
    return nodes.supported ? result : nullptr;
}

bool read_choice(const float * result, int64_t n_rows, int64_t row, Choice & choice) {
    const float best = result[2 * n_rows + row];
    const float next = result[3 * n_rows + row];
    if (!(best < LIMIT && next < best && -LIMIT < next)) {
        return false;
    }
    choice = {{(llama_token) result[row], (llama_token) result[n_rows + row]}, best - next};
    return true;
}

}  // namespace eagle
