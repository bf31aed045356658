// Exact mode of the CUDA backend, and dispatch of nodes to our kernels.

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "eagle_cuda.cuh"
#include "eagle_exact_environment.h"
#include "eagle_exact_kernels.cuh"
#include "eagle_gdn_cuda.cuh"

namespace {

// Off by default: quantized types without a kernel of ours compute row by row, which takes the gain of drafts.
bool asked_for() {
    return eagle_exact_from_environment(0) != 0;
}

std::atomic<bool> & exact() {
    static std::atomic<bool> on{asked_for()};
    return on;
}

void exact_set(bool on) {
    exact() = on;
}

bool exact_get() {
    return exact();
}

int64_t rows_of(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT_ID ? node->src[1]->ne[2] : node->src[1]->ne[1];
}

ggml_tensor slice(const ggml_tensor * t, int dim, int64_t i) {
    ggml_tensor one = *t;
    one.ne[dim] = 1;
    one.data = (char *) t->data + i * t->nb[dim];
    return one;
}

// For quantized types without a kernel of ours, ggml's kernel for a single row computes each row. A single token uses
// the same kernel, so a batch has the same bits.
bool has_one_row_kernel(const ggml_tensor * node) {
    return ggml_is_quantized(node->src[0]->type) && node->src[1]->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32;
}

bool row_by_row(ggml_backend_cuda_context & ctx, ggml_tensor * node, eagle_cuda_compute_t compute) {
    const bool by_id = node->op == GGML_OP_MUL_MAT_ID;
    const int dim = by_id ? 2 : 1;
    for (int64_t i = 0; i < rows_of(node); i++) {
        ggml_tensor row = slice(node, dim, i);
        ggml_tensor x = slice(node->src[1], dim, i);
        row.src[1] = &x;
        ggml_tensor ids;
        if (by_id) {
            ids = slice(node->src[2], 1, i);
            row.src[2] = &ids;
        }
        if (!compute(ctx, &row)) {
            return false;
        }
    }
    return true;
}

bool matrix(ggml_backend_cuda_context & ctx, ggml_tensor * node, eagle_cuda_compute_t compute) {
    if (rows_of(node) > eagle_cuda::MAX_ROWS || ggml_get_op_params_i32(node, 1) == GGML_HINT_SRC0_IS_HADAMARD) {
        return false;
    }
    if (eagle_cuda::mul_mat(ctx, node)) {
        return true;
    }
    return rows_of(node) > 1 && has_one_row_kernel(node) && row_by_row(ctx, node, compute);
}

}  // namespace

bool eagle_cuda_compute_forward(ggml_backend_cuda_context & ctx, ggml_tensor * node, eagle_cuda_compute_t compute) {
    if (eagle_cuda_recurrent(ctx, node)) {
        return true;
    }
    if (!exact()) {
        return false;
    }
    switch (node->op) {
    case GGML_OP_MUL_MAT:
    case GGML_OP_MUL_MAT_ID:
        return matrix(ctx, node, compute);
    case GGML_OP_FLASH_ATTN_EXT:
        return eagle_cuda::flash_attn(ctx, node);
    case GGML_OP_SOFT_MAX:
        return eagle_cuda::soft_max(ctx, node);
    case GGML_OP_GATED_DELTA_NET:
        return eagle_cuda_gdn(ctx, node);
    default:
        return false;
    }
}

// A norm fused with its weight has the same multiplications as the two operations. Other fusions are off until tested
// on a GPU.
bool eagle_cuda_may_fuse(const ggml_cgraph * graph, int i) {
    if (!exact()) {
        return true;
    }
    if (graph->nodes[i]->op != GGML_OP_RMS_NORM || i + 1 >= graph->n_nodes || graph->nodes[i + 1]->op != GGML_OP_MUL) {
        return false;
    }
    const ggml_op next = i + 2 < graph->n_nodes ? graph->nodes[i + 2]->op : GGML_OP_NONE;
    return next != GGML_OP_ADD && next != GGML_OP_ROPE;
}

// Successive graphs of llama.cpp have their nodes at the same addresses, so the key includes their shapes. If two
// graphs have the same key, ggml still compares all nodes before it launches.
const void * eagle_cuda_graph_key(const ggml_cgraph * graph) {
    uint64_t key = (uint64_t) (uintptr_t) graph->nodes[0];
    const auto mix = [&](uint64_t value) { key = (key ^ value) * 0x100000001b3; };
    mix(exact());
    mix(graph->n_nodes);
    for (const ggml_tensor * node :
         {graph->nodes[0], graph->nodes[graph->n_nodes / 2], graph->nodes[graph->n_nodes - 1]}) {
        for (const int64_t ne : node->ne) {
            mix(ne);
        }
    }
    return (const void *) (uintptr_t) key;
}

void * eagle_cuda_proc_address(const char * name) {
    if (strcmp(name, "eagle_cuda_exact_set") == 0) {
        return (void *) exact_set;
    }
    if (strcmp(name, "eagle_cuda_exact_get") == 0) {
        return (void *) exact_get;
    }
    return nullptr;
}
