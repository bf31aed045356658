// Our draft engine among the speculative implementations of llama.cpp's common library. Included once, by
// common/speculative.cpp, behind the interface that it derives from, which has no header of its own.
#pragma once

#include <stdexcept>

#include "eagle_common.h"

struct common_speculative_impl_eagle : public common_speculative_impl {
    common_speculative_impl_eagle(common_speculative_type type, const common_params_speculative & params,
                                  uint32_t n_seq)
        : common_speculative_impl(type, n_seq, params.draft.n_max),
          p_min_(params.draft.p_min),
          drafted_(n_seq, llama_tokens(params.draft.n_max)) {
        eagle_session_params p = eagle_session_default_params();
        p.n_draft_max = params.draft.n_max;
        p.path_tgt = params.draft.eagle_path_tgt.c_str();
        p.path_dft = params.draft.mparams.path.empty() ? p.path_tgt : params.draft.mparams.path.c_str();
        p.n_vocab_draft = type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP ? vocab_from_environment() : 0;
        if (eagle_drafts_new(params.draft.ctx_tgt, params.draft.eagle_model, &p, (int32_t) n_seq, &drafts_) !=
            EAGLE_OK) {
            throw std::runtime_error(eagle_last_error());
        }
        SPC_INF("%s drafts, up to %d tokens\n", eagle_drafts_kind(drafts_), n_max);
    }

    ~common_speculative_impl_eagle() override { eagle_drafts_free(drafts_); }

    void begin(llama_seq_id seq_id, const llama_tokens & prompt) override {
        eagle_drafts_text(drafts_, seq_id, prompt.data(), (int32_t) prompt.size());
    }

    // The context hands the states over itself.
    bool process(const common_batch & /*batch*/) override { return true; }

    void draft(common_speculative_draft_params_vec & dparams) override {
        std::vector<eagle_draft_request> requests;
        for (llama_seq_id seq = 0; seq < (llama_seq_id) n_seq; seq++) {
            const auto & dp = dparams[seq];
            if (dp.drafting) {
                const int32_t longest = dp.n_max > 0 ? std::min(dp.n_max, n_max) : n_max;
                requests.push_back({seq, dp.pos0, dp.id_last, longest, drafted_[seq].data(), 0});
            }
        }
        if (requests.empty()) {
            return;
        }
        if (eagle_drafts_propose(drafts_, requests.data(), (int32_t) requests.size(), p_min_) != EAGLE_OK) {
            SPC_WRN("no draft: %s\n", eagle_last_error());
        }
        for (const auto & r : requests) {
            dparams[r.seq].result->assign(r.ids, r.ids + r.n_out);
        }
    }

    // A sequence's next rows tell where it went back to.
    void accept(llama_seq_id /*seq_id*/, uint16_t /*n_accepted*/, bool /*is_other*/) override {}

  private:
    eagle_drafts * drafts_ = nullptr;
    float p_min_;
    std::vector<llama_tokens> drafted_;  // per sequence

    // Rows of an MTP draft's head, 0: all.
    static int32_t vocab_from_environment() {
        const char * value = std::getenv("LLAMA_EAGLE_DRAFT_VOCAB");
        return value ? std::atoi(value) : 0;
    }
};
