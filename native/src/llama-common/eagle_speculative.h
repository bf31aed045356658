// Our draft engine among the speculative implementations of llama.cpp's common library. Included once, by
// common/speculative.cpp, behind the interface that it derives from, which has no header of its own.
#pragma once

#include <stdexcept>

#include "eagle_common.h"
#include "eagle_pace.h"

struct common_speculative_impl_eagle : public common_speculative_impl {
    common_speculative_impl_eagle(common_speculative_type type, const common_params_speculative & params,
                                  uint32_t n_seq)
        : common_speculative_impl(type, n_seq, params.draft.n_max),
          p_min_(params.draft.p_min),
          pace_((int) n_seq, params.draft.n_max),
          drafted_(n_seq, llama_tokens(params.draft.n_max)),
          n_proposed_(n_seq, 0) {
        eagle_session_params p = eagle_session_default_params();
        p.n_draft_max = params.draft.n_max;
        p.path_tgt = params.draft.eagle_path_tgt.c_str();
        p.path_dft = params.draft.mparams.path.empty() ? p.path_tgt : params.draft.mparams.path.c_str();
        p.n_ctx_draft = number_from("LLAMA_EAGLE_DRAFT_CTX");
        p.n_vocab_draft = type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP ? number_from("LLAMA_EAGLE_DRAFT_VOCAB") : 0;
        if (eagle_drafts_new(params.draft.ctx_tgt, params.draft.eagle_model, &p, (int32_t) n_seq, &drafts_) !=
            EAGLE_OK) {
            throw std::runtime_error(eagle_last_error());
        }
        SPC_INF("%s drafts, up to %d tokens\n", eagle_drafts_kind(drafts_), n_max);
    }

    ~common_speculative_impl_eagle() override { eagle_drafts_free(drafts_); }

    void begin(llama_seq_id seq_id, const llama_tokens & prompt) override {
        eagle_drafts_text(drafts_, seq_id, prompt.data(), (int32_t) prompt.size());
        pace_.began(seq_id);
    }

    // The context has handed the states over itself. A decode after draft() is a round.
    bool process(const common_batch & batch) override {
        if (drafted_at_us_ > 0) {
            pace_.decoded((int) batch.size(), (double) (ggml_time_us() - drafted_at_us_) / 1000.0);
            drafted_at_us_ = 0;
        }
        return true;
    }

    void draft(common_speculative_draft_params_vec & dparams) override {
        const int64_t start_us = ggml_time_us();
        std::vector<eagle_draft_request> requests = make_requests(dparams);
        if (!requests.empty() &&
            eagle_drafts_propose(drafts_, requests.data(), (int32_t) requests.size(), p_min_) != EAGLE_OK) {
            SPC_WRN("no draft: %s\n", eagle_last_error());
        }
        int n_drafted = 0;
        for (const auto & r : requests) {
            dparams[r.seq].result->assign(r.ids, r.ids + r.n_out);
            n_proposed_[r.seq] = r.n_out;
            n_drafted += r.n_out;
        }
        drafted_at_us_ = ggml_time_us();
        pace_.drafted(n_drafted, (double) (drafted_at_us_ - start_us) / 1000.0);
    }

    // A sequence's next rows tell where it went back to.
    void accept(llama_seq_id seq_id, uint16_t n_accepted, bool is_other) override {
        if (!is_other) {
            pace_.accepted(seq_id, (int) n_proposed_[seq_id], n_accepted);
        }
    }

    // Of a sequence with n_past tokens in the target's memory; empty: nothing is known of it.
    std::vector<char> save(llama_seq_id seq, int32_t n_past) const {
        std::vector<char> data(eagle_drafts_state_size(drafts_, seq, n_past));
        const bool saved =
            !data.empty() && eagle_drafts_state_save(drafts_, seq, data.data(), (int64_t) data.size()) == EAGLE_OK;
        return saved ? data : std::vector<char>();
    }

    void load(llama_seq_id seq, int32_t n_past, const std::vector<char> & data) {
        const char * given = data.empty() ? nullptr : data.data();
        if (eagle_drafts_state_load(drafts_, seq, given, (int64_t) data.size(), n_past) != EAGLE_OK) {
            SPC_WRN("the draft begins anew: %s\n", eagle_last_error());
        }
    }

  private:
    eagle_drafts * drafts_ = nullptr;
    float p_min_;
    eagle_pace pace_;
    const bool adapts_ = text_from("LLAMA_EAGLE_DRAFT_LENGTH") == "auto";
    int64_t drafted_at_us_ = 0;          // 0: no round has begun
    std::vector<llama_tokens> drafted_;  // per sequence
    std::vector<int32_t> n_proposed_;

    std::vector<eagle_draft_request> make_requests(const common_speculative_draft_params_vec & dparams) {
        const int n = (int) std::count_if(dparams.begin(), dparams.end(), [](const auto & dp) { return dp.drafting; });
        std::vector<eagle_draft_request> requests;
        for (llama_seq_id seq = 0; seq < (llama_seq_id) n_seq; seq++) {
            const auto & dp = dparams[seq];
            if (!dp.drafting) {
                continue;
            }
            const int32_t longest = dp.n_max > 0 ? std::min(dp.n_max, n_max) : n_max;
            const int32_t length = adapts_ ? std::min(longest, pace_.length(seq, n)) : longest;
            if (length > 0) {
                requests.push_back({seq, dp.pos0, dp.id_last, length, drafted_[seq].data(), 0});
            }
        }
        return requests;
    }

    static std::string text_from(const char * variable) {
        const char * value = std::getenv(variable);
        return value ? value : "";
    }

    // 0: not given.
    static int32_t number_from(const char * variable) { return std::atoi(text_from(variable).c_str()); }
};
