// Exact matrix multiplication: translates a node's tensors to kernel arguments.

#include "eagle_exact_kernels.cuh"
#include "eagle_mul_mat_cuda.cuh"

namespace eagle_cuda {

static constexpr int64_t MAX_CHANNELS = 65535;  // limit of a grid's second dimension

static int64_t floats(size_t bytes) {
    return (int64_t) (bytes / sizeof(float));
}

static mul_mat_args plain_args(const ggml_tensor * node) {
    const ggml_tensor * w = node->src[0];
    const ggml_tensor * x = node->src[1];
    mul_mat_args a = {};
    a.x1 = floats(x->nb[1]), a.x2 = floats(x->nb[2]), a.x3 = floats(x->nb[3]);
    a.d1 = floats(node->nb[1]), a.d2 = floats(node->nb[2]), a.d3 = floats(node->nb[3]);
    a.n2 = (int) x->ne[2];
    a.r2 = (int) (x->ne[2] / w->ne[2]), a.r3 = (int) (x->ne[3] / w->ne[3]);
    a.n_channels = (int) (x->ne[2] * x->ne[3]);
    a.n_columns = (int) x->ne[1];
    return a;
}

// With experts a channel is a slot of a token and has one row.
static mul_mat_args expert_args(const ggml_tensor * node) {
    const ggml_tensor * x = node->src[1];
    const ggml_tensor * ids = node->src[2];
    mul_mat_args a = {};
    a.ids = (const int32_t *) ids->data;
    a.ids_token = (int64_t) (ids->nb[1] / sizeof(int32_t));
    a.x2 = floats(x->nb[1]), a.x3 = floats(x->nb[2]);
    a.d2 = floats(node->nb[1]), a.d3 = floats(node->nb[2]);
    a.n2 = (int) ids->ne[0];
    a.x_slots = (int) x->ne[1];
    a.n_channels = (int) (ids->ne[0] * ids->ne[1]);
    a.n_columns = 1;
    return a;
}

static bool readable(const ggml_tensor * node) {
    const ggml_tensor * w = node->src[0];
    const ggml_tensor * x = node->src[1];
    return x->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32 && w->nb[0] == ggml_type_size(w->type) &&
           x->nb[0] == sizeof(float) && node->nb[0] == sizeof(float) && x->ne[2] * x->ne[3] <= MAX_CHANNELS;
}

bool mul_mat(ggml_backend_cuda_context & ctx, ggml_tensor * node) {
    if (!readable(node)) {
        return false;
    }
    const ggml_tensor * w = node->src[0];
    mul_mat_args a = node->op == GGML_OP_MUL_MAT_ID ? expert_args(node) : plain_args(node);
    a.w = (const char *) w->data;
    a.x = node->src[1]->data;
    a.dst = (float *) node->data;
    a.k = w->ne[0], a.m = w->ne[1];
    a.w1 = (int64_t) w->nb[1], a.w2 = (int64_t) w->nb[2], a.w3 = (int64_t) w->nb[3];
    return ggml_is_quantized(w->type) ? mul_mat_quantized(ctx, node, a) : mul_mat_float(ctx, node, a);
}

}  // namespace eagle_cuda
