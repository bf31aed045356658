// Capture of a target's boundaries. The graph that the context reserved at its creation shows which ones the target
// publishes (eagle_published.h), except for a few architectures that publish them only on request.

#include "eagle_features.h"

#include <cstring>
#include <unordered_set>

#include "eagle_boundaries.h"
#include "eagle_error.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-graph.h"
#include "llama-model.h"

namespace {

// Returns true if the architecture publishes a boundary on request, which the reserved graph does not show. `last`: the
// state after the last block.
bool publishes_on_request(llm_arch arch, bool last) {
    return arch == LLM_ARCH_DEEPSEEK4 ||
           (last && (arch == LLM_ARCH_MIMO2 || arch == LLM_ARCH_NEMOTRON_H || arch == LLM_ARCH_NEMOTRON_H_MOE));
}

// Returns true if a tensor is computed from the rows that a decode outputs, by which a last block is often cut.
bool reads_output_rows(const ggml_tensor * t) {
    std::vector<const ggml_tensor *> open = {t};
    std::unordered_set<const ggml_tensor *> seen;
    while (!open.empty()) {
        const ggml_tensor * at = open.back();
        open.pop_back();
        if (!at || !seen.insert(at).second) {
            continue;
        }
        if (std::strcmp(at->name, "out_ids") == 0) {
            return true;
        }
        open.insert(open.end(), std::begin(at->src), std::end(at->src));
    }
    return false;
}

// Returns true for a boundary [n_embd, n_tokens], whichever rows a decode outputs. Some graphs have several streams.
bool is_state_of_all_rows(const ggml_tensor * t, int64_t n_embd) {
    return t && t->type == GGML_TYPE_F32 && ggml_is_matrix(t) && ggml_is_contiguous(t) && t->ne[0] == n_embd &&
           !reads_output_rows(t);
}

void require_boundary(const llama_context & ctx, int32_t il) {
    const int32_t n_layer = (int32_t) ctx.get_model().hparams.n_layer();
    if (il < 0 || il > n_layer) {
        throw eagle::Error(EAGLE_ERR_INCOMPATIBLE,
                           eagle::format("boundary %d was requested, but the target has %d blocks", il, n_layer));
    }
}

void require_published(const llama_context & ctx, int32_t il) {
    require_boundary(ctx, il);
    if (!eagle_target_publishes_layer(&ctx, il)) {
        const llama_model & model = ctx.get_model();
        throw eagle::Error(EAGLE_ERR_INCOMPATIBLE,
                           eagle::format("targets of architecture %s do not publish boundary %d of %u",
                                         model.arch_name().c_str(), il, model.hparams.n_layer()));
    }
}

// Graphs have the state of every row unless the context computes output rows only (embeddings_nextn_masked).
void require_final_norm(const llama_context & ctx) {
    const llm_graph_result * graph = ctx.get_gf_res_reserve();
    if (!graph || !graph->get_h_nextn() || ctx.get_cparams().embeddings_nextn_masked) {
        throw eagle::Error(EAGLE_ERR_INCOMPATIBLE,
                           eagle::format("this context of a %s model does not publish the state after the final norm "
                                         "of every row",
                                         ctx.get_model().arch_name().c_str()));
    }
}

// A boundary is a graph output while a session or the host reads it.
void update_capture(llama_context & ctx, uint32_t il) {
    ctx.set_embeddings_layer_inp(il, ctx.eagle_session_layers.count(il) + ctx.eagle_host_layers.count(il) > 0);
}

}  // namespace

namespace eagle {

Boundaries::Boundaries(llama_context & ctx, const std::vector<int32_t> & ids) : ctx_(ctx), ids_(ids) {
    try {
        for (int32_t id : ids_) {
            capture(id);
        }
    } catch (...) {
        release();
        throw;
    }
}

Boundaries::~Boundaries() {
    release();
}

void Boundaries::capture(int32_t id) {
    if (id == FINAL_NORM) {
        return require_final_norm(ctx_);
    }
    require_published(ctx_, id);
    ctx_.eagle_session_layers.insert((uint32_t) id);
    update_capture(ctx_, (uint32_t) id);
}

void Boundaries::release() {
    for (int32_t id : ids_) {
        if (id != FINAL_NORM) {
            ctx_.eagle_session_layers.erase((uint32_t) id);
            update_capture(ctx_, (uint32_t) id);
        }
    }
}

std::vector<ggml_tensor *> Boundaries::of_last_graph(int32_t n_rows) const {
    const llm_graph_result * result = ctx_.eagle_last_result();
    std::vector<ggml_tensor *> found;
    for (int32_t id : ids_) {
        ggml_tensor * t = nullptr;
        if (result) {
            t = id == FINAL_NORM ? result->get_h_nextn() : result->get_layer_inp(id);
        }
        if (!t || t->ne[1] != n_rows || t->ne[0] != ctx_.get_model().hparams.n_embd || !ggml_is_contiguous(t)) {
            throw Error(EAGLE_ERR_INTERNAL, format("boundary %d of the last %d tokens is not available", id, n_rows));
        }
        found.push_back(t);
    }
    return found;
}

}  // namespace eagle

int32_t eagle_target_publishes_layer(const llama_context * ctx, int32_t il) {
    const llama_model & model = ctx->get_model();
    const int32_t n_layer = (int32_t) model.hparams.n_layer();
    if (il < 0 || il > n_layer) {
        return false;
    }
    const llm_graph_result * graph = ctx->get_gf_res_reserve();
    return publishes_on_request(model.arch, il == n_layer) ||
           (graph && is_state_of_all_rows(graph->get_layer_inp(il), (int64_t) model.hparams.n_embd));
}

int32_t eagle_capture_layer(llama_context * ctx, int32_t il, bool enable) {
    return eagle::guarded("eagle_capture_layer", [&] {
        if (!ctx) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "ctx is null");
        }
        if (enable) {
            require_published(*ctx, il);
            ctx->eagle_host_layers.insert((uint32_t) il);
        } else {
            require_boundary(*ctx, il);
            ctx->eagle_host_layers.erase((uint32_t) il);
        }
        update_capture(*ctx, (uint32_t) il);
    });
}

const float * eagle_layer_rows(llama_context * ctx, int32_t il) {
    const int32_t n_boundaries = (int32_t) ctx->get_cparams().embeddings_layer_inp.size();
    if (il < 0 || il >= n_boundaries || !ctx->eagle_wants_host_copy((uint32_t) il)) {
        return nullptr;
    }
    return llama_get_embeddings_layer_inp(ctx, (uint32_t) il);
}
