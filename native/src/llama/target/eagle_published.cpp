#include "eagle_published.h"

#include <cstring>

#include "llama-graph.h"

namespace {

// In these architectures later blocks also read other values, or the name is also that of another tensor: see
// tests/parity/test_every_architecture.py.
bool means_something_else(llm_arch arch) {
    switch (arch) {
    case LLM_ARCH_ARWKV7:
    case LLM_ARCH_GRANITE_SWITCH:
    case LLM_ARCH_HRM_TEXT:
    case LLM_ARCH_HY_V4:
    case LLM_ARCH_KIMI_K3:
    case LLM_ARCH_NEMOTRON_H:
    case LLM_ARCH_NEMOTRON_H_MOE:
    case LLM_ARCH_RWKV7:
    case LLM_ARCH_T5:
    case LLM_ARCH_T5ENCODER:
        return true;
    default:
        return false;
    }
}

// Returns the boundary of a tensor, or 0. Vision features are added behind a block, or in front of the next one.
int boundary_of(const char * name, int il) {
    if (std::strcmp(name, "l_out") == 0 || std::strcmp(name, "deepstack_out") == 0) {
        return il + 1;
    }
    return std::strcmp(name, "deepstack_in") == 0 ? il : 0;
}

// Graphs with several streams or with rows for outputs alone have other shapes.
bool is_state_of_all_rows(const llm_graph_context & graph, const ggml_tensor & cur) {
    return cur.type == GGML_TYPE_F32 && ggml_is_contiguous(&cur) && ggml_is_matrix(&cur) && cur.ne[0] == graph.n_embd &&
           cur.ne[1] == graph.n_tokens;
}

}  // namespace

void eagle_publish_boundary(const llm_graph_context & graph, ggml_tensor * cur, const char * name, int il) {
    const int boundary = boundary_of(name, il);
    if (boundary > 0 && boundary <= graph.n_layer && !means_something_else(graph.arch) &&
        is_state_of_all_rows(graph, *cur)) {
        graph.res->t_layer_inp[boundary] = cur;
    }
}
