#include "eagle_round_state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "eagle_round_nodes.h"
#include "llama-impl.h"
#include "llama-model.h"

namespace {

enum class mode { replay, unfused, snapshots };

mode mode_from_environment() {
    const char * value = getenv("LLAMA_EAGLE_RS");
    if (!value || !*value || strcmp(value, "replay") == 0) {
        return mode::replay;
    }
    if (strcmp(value, "unfused") == 0) {
        return mode::unfused;
    }
    if (strcmp(value, "snapshots") == 0) {
        return mode::snapshots;
    }
    throw std::runtime_error(format("LLAMA_EAGLE_RS=%s is not known: use replay, unfused or snapshots", value));
}

eagle_round_layout gdn_layout(const llama_model & model) {
    const auto & hparams = model.hparams;
    eagle_round_layout layout;
    layout.k_dim = layout.v_dim = hparams.ssm_d_state;
    layout.n_v_heads = hparams.ssm_dt_rank;
    // qwen3next repeats its key heads to the number of value heads before the operation
    layout.n_k_heads = model.arch == LLM_ARCH_QWEN3NEXT ? hparams.ssm_dt_rank : hparams.ssm_n_group;
    layout.conv_window = (int64_t) hparams.ssm_d_conv - 1;
    return layout;
}

eagle_round_layout ssm_layout(const llama_model & model) {
    const auto & hparams = model.hparams;
    eagle_round_layout layout;
    layout.kind = eagle_round_kind::ssm;
    layout.k_dim = hparams.ssm_d_state;
    layout.v_dim = hparams.ssm_dt_rank > 0 ? hparams.ssm_d_inner / hparams.ssm_dt_rank : 0;
    layout.n_v_heads = hparams.ssm_dt_rank;
    layout.n_k_heads = hparams.ssm_n_group;
    layout.conv_window = (int64_t) hparams.ssm_d_conv - 1;
    return layout;
}

eagle_round_layout conv_layout(const llama_model & model) {
    eagle_round_layout layout;
    layout.kind = eagle_round_kind::conv;
    layout.conv_window = (int64_t) model.hparams.n_shortconv_l_cache - 1;
    return layout;
}

// Returns no layout for architectures without replay. Models that look at later tokens generate no text.
std::optional<eagle_round_layout> arch_layout(const llama_model & model) {
    switch (model.arch) {
    case LLM_ARCH_QWEN35:
    case LLM_ARCH_QWEN35MOE:
    case LLM_ARCH_QWEN3NEXT:
        return gdn_layout(model);
    case LLM_ARCH_FALCON_H1:
    case LLM_ARCH_GRANITE_HYBRID:
    case LLM_ARCH_MAMBA2:
    case LLM_ARCH_NEMOTRON_H:
    case LLM_ARCH_NEMOTRON_H_MOE:
        return ssm_layout(model);
    case LLM_ARCH_LFM2:
    case LLM_ARCH_LFM2MOE:
        return model.hparams.causal_attn ? std::optional(conv_layout(model)) : std::nullopt;
    default:
        return std::nullopt;
    }
}

// Requires states of the sizes that the kernels support.
bool scan_is_supported(const eagle_round_layout & l) {
    switch (l.kind) {
    case eagle_round_kind::gdn:
        return l.k_dim == 16 || l.k_dim == 32 || l.k_dim == 64 || l.k_dim == 128;
    case eagle_round_kind::ssm:
        return l.k_dim > 0 && l.k_dim % 16 == 0 && l.k_dim <= 256 && l.n_k_heads > 0 && l.n_v_heads % l.n_k_heads == 0;
    default:
        return true;
    }
}

std::optional<eagle_round_layout> make_layout(const llama_model & model, uint32_t n_rs_seq) {
    auto layout = arch_layout(model);
    if (!layout || layout->conv_window <= 0) {
        return std::nullopt;
    }
    layout->n_slots = n_rs_seq > 0 ? n_rs_seq + 1 : 0;
    layout->n_channels = model.hparams.n_embd_r() / layout->conv_window;
    const bool has_sizes = layout->v_floats() == (int64_t) model.hparams.ssm_d_inner &&
                           layout->state_floats() == (int64_t) model.hparams.n_embd_s();
    return has_sizes && scan_is_supported(*layout) ? layout : std::nullopt;
}

// Graphs of Mamba 2 that copy states have more nodes than llama.cpp reserves, and would end the process.
void refuse_copies(const llama_model & model, uint32_t n_rs_seq) {
    const auto kind = arch_layout(model);
    if (n_rs_seq > 0 && kind && kind->kind == eagle_round_kind::ssm) {
        throw std::runtime_error(format(
            "states of %u values for each channel cannot be replayed (a multiple of 16 up to 256 can): create the "
            "context with n_rs_seq = 0",
            model.hparams.ssm_d_state));
    }
}

// Returns the devices of the recurrent layers' caches.
std::vector<ggml_backend_dev_t> cache_devices(const llama_model & model, bool offload) {
    std::vector<ggml_backend_dev_t> devices;
    for (uint32_t il = 0; il < model.hparams.n_layer(); il++) {
        if (model.hparams.is_recr(il) || llm_arch_is_recurrent(model.arch)) {
            devices.push_back(offload ? model.dev_layer(il) : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
        }
    }
    return devices;
}

}  // namespace

void eagle_round_state::add_layer(ggml_context * ctx, size_t il) {
    records.resize(std::max(records.size(), il + 1));
    if (layout.n_slots > 0) {
        const int64_t n_floats = fused ? layout.row_floats() : eagle_round_parts(layout).end;
        records[il] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_floats, (int64_t) cells.size());
        ggml_format_name(records[il], "cache_eagle_rec_l%zu", il);
    }
}

bool eagle_round_state::trim(uint32_t i, llama_pos & cell_pos, llama_pos p0) {
    auto & cell = cells[i];
    if (cell.dirty) {
        LLAMA_LOG_ERROR(
            "%s: a decode failed half-way: remove the sequence with llama_memory_seq_rm(mem, seq, -1, -1) "
            "and evaluate it again\n",
            __func__);
    }
    if (cell.dirty || cell.n_kept == 0 || cell_pos - cell.back[0] > p0) {
        return false;
    }
    while (cell.n_kept > 0 && cell_pos - cell.back[cell.n_kept - 1] >= p0) {
        cell.n_kept--;
    }
    cell.back.resize(cell.n_kept);
    for (llama_pos & back : cell.back) {
        back -= cell_pos - (p0 - 1);
    }
    cell_pos = p0 - 1;
    return true;
}

void eagle_round_state::loaded(uint32_t head, uint32_t n) {
    for (uint32_t i = head; i < head + n; i++) {
        cells[i] = {};
    }
}

std::shared_ptr<eagle_round_state> eagle_round_state_new(const llama_model & model, bool offload, uint32_t n_cells,
                                                         uint32_t n_rs_seq) {
    const mode wanted = mode_from_environment();
    const auto layout = make_layout(model, n_rs_seq);
    if (wanted == mode::snapshots) {
        return nullptr;
    }
    if (!layout) {
        refuse_copies(model, n_rs_seq);
        return nullptr;
    }
    auto state = std::make_shared<eagle_round_state>();
    state->layout = *layout;
    state->fused = wanted == mode::replay;
    for (ggml_backend_dev_t dev : cache_devices(model, offload)) {
        if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_META) {
            return nullptr;
        }
        state->fused = state->fused && eagle_round_device_knows(dev, *layout);
    }
    for (const auto & layer : model.layers) {
        state->decays.push_back(layer.ssm_a);
    }
    state->cells.resize(n_cells);
    return state;
}
