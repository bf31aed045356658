// Our draft engine among the speculative implementations of llama.cpp's common library. Included once, by
// common/speculative.cpp, behind the interface that it derives from, which has no header of its own.
#pragma once

#include <memory>
#include <stdexcept>

#include "eagle_common.h"
#include "eagle_lookup.h"
#include "eagle_pace.h"
#include "eagle_verdict.h"
#include "ggml-cpp.h"
#include "gguf.h"

// The likeliest tokens, as a file with an MTP head may store them for a trimmed head.
static std::vector<llama_token> eagle_base_ids(const char * path) {
    const gguf_context_ptr file(gguf_init_from_file(path, {true, nullptr}));
    const int64_t key = file ? gguf_find_key(file.get(), "llama_eagle.draft_vocab") : -1;
    if (key < 0 || gguf_get_kv_type(file.get(), key) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(file.get(), key) != GGUF_TYPE_UINT32) {
        return {};
    }
    const auto * ids = (const llama_token *) gguf_get_arr_data(file.get(), key);
    return {ids, ids + gguf_get_arr_n(file.get(), key)};
}

static std::string eagle_text_from(const char * variable) {
    const char * value = std::getenv(variable);
    return value ? value : "";
}

// What all that draft for the same slots learn from their rounds, and what they draft in this one.
struct eagle_rounds {
    eagle_rounds(int n_seq, int n_max) : pace(n_seq, n_max), n_max_(n_max) {}

    eagle_pace pace;
    std::vector<int> seqs;      // of this round
    int length = 0;             // tokens to draft for each of them
    int64_t drafted_at_us = 0;  // 0: no round has begun

    // Called by each that drafts; the first call counts.
    void begin(const common_speculative_draft_params_vec & dparams) {
        if (drafted_at_us > 0) {
            return;
        }
        const int64_t now_us = ggml_time_us();
        if (round_at_us_ > 0) {
            pace.decoded((int) seqs.size(), n_rows_, (double) (now_us - round_at_us_) / 1000.0);
            round_at_us_ = 0;
        }
        seqs.clear();
        for (size_t seq = 0; seq < dparams.size(); seq++) {
            if (dparams[seq].drafting) {
                seqs.push_back((int) seq);
            }
        }
        length = adapts_ ? pace.length(seqs) : n_max_;
        drafted_at_us = now_us;
    }

    // Called by each that drafts when it has: the last one's drafts count.
    void drafted(const common_speculative_draft_params_vec & dparams) {
        n_rows_ = 0;
        for (int seq : seqs) {
            n_rows_ += 1 + (int) dparams[seq].result->size();
        }
        drafted_at_us = ggml_time_us();
    }

    // Called by each that drafts. A decode after drafting is a round: it lasts until the next one begins, since
    // sampling takes its time from every row, too. Where prompts are read in it or after it, its time says nothing.
    void decoded(const common_batch & batch) {
        const bool is_round = (int) batch.size() == n_rows_;
        if (drafted_at_us > 0 || !is_round) {
            round_at_us_ = is_round ? drafted_at_us : 0;
        }
        drafted_at_us = 0;
    }

  private:
    int n_max_, n_rows_ = 0;
    int64_t round_at_us_ = 0;  // since then its drafts are verified and sampled; 0: no time to take
    const bool adapts_ = eagle_text_from("LLAMA_EAGLE_DRAFT_LENGTH") == "auto";
};

// Asked before the draft, and cheap; it drafts where that promises more tokens per time.
struct common_speculative_impl_eagle_lookup : public common_speculative_impl {
    common_speculative_impl_eagle_lookup(const common_params_speculative & params, uint32_t n_seq,
                                         std::shared_ptr<eagle_rounds> rounds)
        : common_speculative_impl(COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE, n_seq, params.draft.n_max),
          rounds_(std::move(rounds)),
          texts_(n_seq) {}

    void begin(llama_seq_id seq_id, const llama_tokens & prompt) override { texts_[seq_id].begin(prompt); }

    bool process(const common_batch & batch) override {
        rounds_->decoded(batch);
        return true;
    }

    void draft(common_speculative_draft_params_vec & dparams) override {
        rounds_->begin(dparams);
        for (int seq : rounds_->seqs) {
            const auto & dp = dparams[seq];
            llama_tokens ids =
                texts_[seq].draft(*dp.prompt, dp.id_last, dp.n_max > 0 ? std::min(dp.n_max, n_max) : n_max);
            ids.resize(
                rounds_->pace.free_length(seq, texts_[seq].rate(), (int) ids.size(), rounds_->seqs, rounds_->length));
            *dp.result = std::move(ids);
        }
        rounds_->drafted(dparams);
    }

    void accept(llama_seq_id /*seq_id*/, uint16_t /*n_accepted*/, bool /*is_other*/) override {}

  private:
    std::shared_ptr<eagle_rounds> rounds_;
    std::vector<eagle_lookup> texts_;  // per sequence
};

struct common_speculative_impl_eagle : public common_speculative_impl {
    common_speculative_impl_eagle(common_speculative_type type, const common_params_speculative & params,
                                  uint32_t n_seq, std::shared_ptr<eagle_rounds> rounds)
        : common_speculative_impl(type, n_seq, params.draft.n_max),
          rounds_(std::move(rounds)),
          drafted_(n_seq, llama_tokens(params.draft.n_max)),
          n_proposed_(n_seq, 0) {
        eagle_session_params p = eagle_session_default_params();
        p.n_draft_max = params.draft.n_max;
        p.path_tgt = params.draft.eagle_path_tgt.c_str();
        p.path_dft = params.draft.mparams.path.empty() ? p.path_tgt : params.draft.mparams.path.c_str();
        p.n_ctx_draft = number_from("LLAMA_EAGLE_DRAFT_CTX");
        p.n_vocab_draft = type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP ? number_from("LLAMA_EAGLE_DRAFT_VOCAB") : 0;
        const std::vector<llama_token> base_ids =
            p.n_vocab_draft > 0 ? eagle_base_ids(p.path_dft) : std::vector<llama_token>();
        p.n_base_ids = (int32_t) base_ids.size();
        p.base_ids = base_ids.data();
        if (eagle_drafts_new(params.draft.ctx_tgt, params.draft.eagle_model, &p, (int32_t) n_seq, &drafts_) !=
            EAGLE_OK) {
            throw std::runtime_error(eagle_last_error());
        }
        SPC_INF("%s drafts, up to %d tokens\n", eagle_drafts_kind(drafts_), n_max);
    }

    ~common_speculative_impl_eagle() override { eagle_drafts_free(drafts_); }

    void begin(llama_seq_id seq_id, const llama_tokens & prompt) override {
        eagle_drafts_text(drafts_, seq_id, prompt.data(), (int32_t) prompt.size());
        rounds_->pace.began(seq_id);
    }

    // The context has handed the states over itself.
    bool process(const common_batch & batch) override {
        rounds_->decoded(batch);
        return true;
    }

    void draft(common_speculative_draft_params_vec & dparams) override {
        const int64_t start_us = ggml_time_us();
        std::vector<eagle_draft_request> requests = make_requests(dparams);
        propose(requests, dparams);
        int n_steps = 0;
        for (const auto & r : requests) {
            dparams[r.seq].result->assign(r.ids, r.ids + r.n_out);
            n_proposed_[r.seq] = r.n_out;
            n_steps = std::max(n_steps, r.n_out);
        }
        rounds_->drafted(dparams);
        rounds_->pace.drafted((int) requests.size(), n_steps, (double) (rounds_->drafted_at_us - start_us) / 1000.0);
    }

    // A sequence's next rows tell where it went back to.
    void accept(llama_seq_id seq_id, uint16_t n_accepted, bool is_other) override {
        if (!is_other) {
            rounds_->pace.accepted(seq_id, (int) n_proposed_[seq_id], n_accepted);
            verdict_.verified((int) n_proposed_[seq_id], n_accepted);
            if (verdict_.is_due()) {
                SPC_WRN("%s\n", verdict_.text().c_str());
            }
        }
    }

    // Of a sequence whose next row stands at `pos`; empty: nothing is known of it.
    std::vector<char> save(llama_seq_id seq, llama_pos pos) const {
        std::vector<char> data(eagle_drafts_state_size(drafts_, seq, pos));
        const bool saved =
            !data.empty() && eagle_drafts_state_save(drafts_, seq, data.data(), (int64_t) data.size()) == EAGLE_OK;
        return saved ? data : std::vector<char>();
    }

    void load(llama_seq_id seq, llama_pos pos, const std::vector<char> & data) {
        const char * given = data.empty() ? nullptr : data.data();
        if (eagle_drafts_state_load(drafts_, seq, given, (int64_t) data.size(), pos) != EAGLE_OK) {
            SPC_WRN("the draft begins anew: %s\n", eagle_last_error());
        }
    }

  private:
    eagle_drafts * drafts_ = nullptr;
    std::shared_ptr<eagle_rounds> rounds_;
    std::vector<llama_tokens> drafted_;  // per sequence
    std::vector<int32_t> n_proposed_;
    eagle_draft_verdict verdict_;

    // Requests with one p_min share a graph.
    void propose(std::vector<eagle_draft_request> & requests, const common_speculative_draft_params_vec & dparams) {
        const auto p_min = [&](const eagle_draft_request & r) { return dparams[r.seq].eagle_p_min; };
        std::stable_sort(requests.begin(), requests.end(),
                         [&](const auto & a, const auto & b) { return p_min(a) < p_min(b); });
        for (size_t begin = 0, end = 0; begin < requests.size(); begin = end) {
            while (end < requests.size() && p_min(requests[end]) == p_min(requests[begin])) {
                end++;
            }
            if (eagle_drafts_propose(drafts_, &requests[begin], (int32_t) (end - begin), p_min(requests[begin])) !=
                EAGLE_OK) {
                SPC_WRN("no draft: %s\n", eagle_last_error());
            }
        }
    }

    std::vector<eagle_draft_request> make_requests(const common_speculative_draft_params_vec & dparams) {
        rounds_->begin(dparams);
        std::vector<eagle_draft_request> requests;
        for (llama_seq_id seq = 0; seq < (llama_seq_id) n_seq; seq++) {
            const auto & dp = dparams[seq];
            if (!dp.drafting) {
                continue;
            }
            const int32_t longest = dp.n_max > 0 ? std::min(dp.n_max, n_max) : n_max;
            const int32_t length = std::min(longest, rounds_->length);
            if (length > 0) {
                requests.push_back({seq, dp.pos0, dp.id_last, length, drafted_[seq].data(), 0});
            }
        }
        return requests;
    }

    // 0: not given.
    static int32_t number_from(const char * variable) { return std::atoi(eagle_text_from(variable).c_str()); }
};

// Ours in the place of upstream's, null where it stays. `rounds`: of all that were made before, null before the first.
static std::unique_ptr<common_speculative_impl> eagle_make_impl(common_speculative_type type,
                                                                const common_params_speculative & params,
                                                                uint32_t n_seq,
                                                                std::shared_ptr<eagle_rounds> & rounds) {
    const llama_model * model = params.draft.eagle_model;
    if (!rounds) {
        rounds = std::make_shared<eagle_rounds>((int) n_seq, params.draft.n_max);
    }
    if (eagle_drafts_of(params, model, type)) {
        return std::make_unique<common_speculative_impl_eagle>(type, params, n_seq, rounds);
    }
    if (type == COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE && eagle_drafts_of(params, model)) {
        return std::make_unique<common_speculative_impl_eagle_lookup>(params, n_seq, rounds);
    }
    return nullptr;
}
