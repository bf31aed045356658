// Which boundaries a target publishes. The answer comes from the graph that the context reserved when it was made; a
// list of architectures is needed only for those that publish nothing before they are asked.

#include "eagle_features.h"

#include "eagle_error.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-graph.h"
#include "llama-model.h"

namespace {

// Published when asked, so the reserved graph does not show it: every boundary, or only the state after the last block.
bool publishes_on_request(llm_arch arch, bool last) {
    return arch == LLM_ARCH_DEEPSEEK4 ||
           (last && (arch == LLM_ARCH_MIMO2 || arch == LLM_ARCH_NEMOTRON_H || arch == LLM_ARCH_NEMOTRON_H_MOE));
}

}  // namespace

int32_t eagle_target_publishes_layer(const llama_context * ctx, int32_t il) {
    const llama_model & model = ctx->get_model();
    const int32_t n_layer = (int32_t) model.hparams.n_layer();
    if (il < 0 || il > n_layer) {
        return false;
    }
    const llm_graph_result * graph = ctx->get_gf_res_reserve();
    return publishes_on_request(model.arch, il == n_layer) || (graph && graph->get_layer_inp(il) != nullptr);
}

int32_t eagle_capture_layer(llama_context * ctx, int32_t il, bool enable) {
    return eagle::guarded("eagle_capture_layer", [&] {
        if (!ctx) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "ctx is null");
        }
        const llama_model & model = ctx->get_model();
        const int32_t n_layer = (int32_t) model.hparams.n_layer();
        if (il < 0 || il > n_layer) {
            throw eagle::Error(EAGLE_ERR_INCOMPATIBLE,
                               eagle::format("boundary %d was asked for, but the target has %d blocks", il, n_layer));
        }
        if (enable && !eagle_target_publishes_layer(ctx, il)) {
            throw eagle::Error(EAGLE_ERR_INCOMPATIBLE,
                               eagle::format("targets of architecture %s do not publish boundary %d of %d",
                                             model.arch_name().c_str(), il, n_layer));
        }
        llama_set_embeddings_layer_inp(ctx, (uint32_t) il, enable);
    });
}

const float * eagle_layer_rows(llama_context * ctx, int32_t il) {
    const std::vector<bool> & captured = ctx->get_cparams().embeddings_layer_inp;
    if (il < 0 || il >= (int32_t) captured.size() || !captured[il]) {
        return nullptr;
    }
    return llama_get_embeddings_layer_inp(ctx, (uint32_t) il);
}
