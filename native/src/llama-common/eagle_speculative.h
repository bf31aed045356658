// Our draft engine as a speculative implementation of llama.cpp's common library. Included once, by
// common/speculative.cpp after the interface, which has no header of its own.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>

#include "eagle_common.h"
#include "eagle_lookup.h"
#include "eagle_policy.h"
#include "eagle_verdict.h"
#include "ggml-cpp.h"
#include "gguf.h"

// Reads the most frequent tokens, which a file with an MTP head may store for a trimmed head.
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

// Returns true for a draft model that reads its weights once for all tokens of a round.
static bool eagle_drafts_blocks(const llama_model * model) {
    char value[8] = {};
    llama_model_meta_val_str(model, "general.architecture", value, sizeof value);
    return std::strcmp(value, "dflash") == 0 ||
           llama_model_meta_val_str(model, "eagle3.block_size", value, sizeof value) >= 0;  // P-EAGLE
}

// Rounds of all slots: chooses the drafter and draft length of each slot, and measures the times.
struct eagle_rounds {
    eagle_rounds(int n_seq, const common_params_speculative_draft & params, bool has_model)
        : n_max_(params.n_max), choices_(n_seq) {
        eagle_policy_params p = eagle_policy_default_params();
        p.n_seq = n_seq;
        p.n_draft_max = n_max_;
        p.n_draft = params.eagle_length == "auto" ? 0 : n_max_;
        p.has_model = has_model;
        if (params.eagle_model && eagle_drafts_blocks(params.eagle_model)) {
            p.draft_cost = 0.15f;  // of a plain decode, until it is measured
            p.token_cost = 0.01f;
        }
        eagle_policy * made = nullptr;
        if (eagle_policy_new(&p, &made) != EAGLE_OK) {
            throw std::runtime_error(eagle_last_error());
        }
        policy_.reset(made);
    }

    ~eagle_rounds() {
        if (lookup_ && eagle_lookup_save(lookup_.get()) != EAGLE_OK) {
            SPC_WRN("%s\n", eagle_last_error());
        }
    }

    // Adds the prompt look-up as a drafter.
    void add_lookup(const common_params_speculative_draft & params) {
        eagle_lookup * made = nullptr;
        if (eagle_lookup_new((int32_t) choices_.size(), LOOKUP_NGRAM, LOOKUP_MIN, &made) != EAGLE_OK) {
            throw std::runtime_error(eagle_last_error());
        }
        lookup_.reset(made);
        const std::string & path = params.eagle_lookup_cache;
        if (!path.empty() && eagle_lookup_open(made, params.eagle_vocab, path.c_str()) != EAGLE_OK) {
            throw std::runtime_error(eagle_last_error());
        }
        if (*eagle_lookup_notice(made)) {
            SPC_WRN("%s\n", eagle_lookup_notice(made));
        }
        offers_.assign(choices_.size(), {0, llama_tokens(n_max_), 0});
    }

    void new_text(llama_seq_id seq) {
        eagle_policy_begin(policy_.get(), seq);
        if (lookup_) {
            offers_[seq].n_text = SIZE_MAX;
        }
    }

    // Begins a round. Every implementation calls it; only the first call has an effect.
    void begin(const common_speculative_draft_params_vec & dparams) {
        if (drafted_at_us_ > 0) {
            return;
        }
        drafted_at_us_ = ggml_time_us();
        if (round_at_us_ > 0 && !seqs_.empty()) {
            eagle_policy_decoded(policy_.get(), (int32_t) seqs_.size(), n_rows_,
                                 (double) (drafted_at_us_ - round_at_us_) / 1000.0);
            round_at_us_ = 0;
        }
        seqs_.clear();
        std::vector<eagle_policy_draft> drafts;
        for (size_t seq = 0; seq < dparams.size(); seq++) {
            if (dparams[seq].drafting) {
                seqs_.push_back((int) seq);
                const int32_t room = dparams[seq].n_max > 0 ? std::min(dparams[seq].n_max, n_max_) : n_max_;
                drafts.push_back({(llama_seq_id) seq, room, EAGLE_SOURCE_NONE, 0});
                offer((llama_seq_id) seq, dparams[seq], room);
            }
        }
        eagle_policy_choose(policy_.get(), drafts.data(), (int32_t) drafts.size());
        for (const auto & draft : drafts) {
            choices_[draft.seq] = draft;
        }
    }

    const std::vector<int> & seqs() const { return seqs_; }  // of this round

    // Returns the draft length of a sequence in this round, 0 if another source drafts for it.
    int32_t length(int seq, eagle_draft_source source) const {
        return choices_[seq].source == source ? choices_[seq].n_draft : 0;
    }

    llama_tokens offered(int seq) const {
        const auto & ids = offers_[seq].ids;
        return {ids.begin(), ids.begin() + length(seq, EAGLE_SOURCE_OFFER)};
    }

    // Every implementation calls it after its drafts; the last call counts.
    void drafted(const common_speculative_draft_params_vec & dparams) {
        n_rows_ = 0;
        for (int seq : seqs_) {
            n_rows_ += 1 + (int) dparams[seq].result->size();
        }
        drafted_at_us_ = ggml_time_us();
    }

    // Reports the time of the model's drafts since start_us.
    void model_drafted(int n_seq, int n_tokens, int64_t start_us) {
        eagle_policy_drafted(policy_.get(), std::max(n_seq, 1), n_tokens,
                             (double) (drafted_at_us_ - start_us) / 1000.0);
    }

    void verified(llama_seq_id seq, int n_draft, int n_accepted) {
        eagle_policy_verified(policy_.get(), seq, n_draft, n_accepted);
    }

    // Every implementation calls it after a decode. A decode after drafting is a round, which lasts until the next one
    // begins, because sampling takes time for every row, too. If it includes or precedes a prompt, its time is not
    // used.
    void decoded(const common_batch & batch) {
        const bool is_round = (int) batch.size() == n_rows_;
        if (drafted_at_us_ > 0 || !is_round) {
            round_at_us_ = is_round ? drafted_at_us_ : 0;
        }
        drafted_at_us_ = 0;
    }

  private:
    static constexpr int LOOKUP_NGRAM = 6, LOOKUP_MIN = 2;  // same as PromptLookup in the bindings

    struct Free {
        void operator()(eagle_policy * policy) const { eagle_policy_free(policy); }
        void operator()(eagle_lookup * lookup) const { eagle_lookup_free(lookup); }
    };

    struct Offer {
        size_t n_text;  // length of the text without id_last
        llama_tokens ids;
        int32_t n;
    };

    int n_max_, n_rows_ = 0;
    std::unique_ptr<eagle_policy, Free> policy_;
    std::unique_ptr<eagle_lookup, Free> lookup_;
    std::vector<eagle_policy_draft> choices_;  // by sequence
    std::vector<Offer> offers_;                // by sequence; empty without look-up
    std::vector<int> seqs_;
    int64_t drafted_at_us_ = 0;  // end of drafting; 0: no round has begun
    int64_t round_at_us_ = 0;    // start of the decode and sampling of a round; 0: not measured

    void offer(llama_seq_id seq, const common_speculative_draft_params & dp, int32_t n_max) {
        if (!lookup_) {
            return;
        }
        const int64_t start_us = ggml_time_us();
        int32_t n_match = 0;
        Offer & last = offers_[seq];
        const llama_tokens & text = *dp.prompt;
        if (text.size() > last.n_text) {
            llama_tokens added(text.begin() + last.n_text + 1, text.end());
            added.push_back(dp.id_last);
            eagle_policy_text(policy_.get(), seq, added.data(), (int32_t) added.size());
        }
        eagle_lookup_begin(lookup_.get(), seq, text.data(), (int32_t) text.size());
        eagle_lookup_draft(lookup_.get(), seq, dp.id_last, last.ids.data(), n_max, &last.n, &n_match);
        last.n_text = text.size();
        eagle_policy_offer(policy_.get(), seq, last.ids.data(), last.n, n_match,
                           (double) (ggml_time_us() - start_us) / 1000.0);
    }
};

// Prompt look-up: drafts for the sequences that the policy assigns to it, before the model does.
struct common_speculative_impl_eagle_lookup : public common_speculative_impl {
    common_speculative_impl_eagle_lookup(const common_params_speculative & params, uint32_t n_seq,
                                         std::shared_ptr<eagle_rounds> rounds)
        : common_speculative_impl(COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE, n_seq, params.draft.n_max),
          rounds_(std::move(rounds)) {
        rounds_->add_lookup(params.draft);
    }

    void begin(llama_seq_id seq_id, const llama_tokens & /*prompt*/) override { rounds_->new_text(seq_id); }

    bool process(const common_batch & batch) override {
        rounds_->decoded(batch);
        return true;
    }

    void draft(common_speculative_draft_params_vec & dparams) override {
        rounds_->begin(dparams);
        for (int seq : rounds_->seqs()) {
            *dparams[seq].result = rounds_->offered(seq);
        }
        rounds_->drafted(dparams);
    }

    void accept(llama_seq_id /*seq_id*/, uint16_t /*n_accepted*/, bool /*is_other*/) override {}

  private:
    std::shared_ptr<eagle_rounds> rounds_;
};

struct common_speculative_impl_eagle : public common_speculative_impl {
    common_speculative_impl_eagle(common_speculative_type type, const common_params_speculative & params,
                                  uint32_t n_seq, std::shared_ptr<eagle_rounds> rounds)
        : common_speculative_impl(type, n_seq, params.draft.n_max),
          rounds_(std::move(rounds)),
          drafted_(n_seq, llama_tokens(params.draft.n_max)),
          n_proposed_(n_seq, 0),
          n_text_(n_seq, 0) {
        eagle_session_params p = eagle_session_default_params();
        p.n_draft_max = params.draft.n_max;
        p.path_tgt = params.draft.eagle_path_tgt.c_str();
        p.path_dft = params.draft.mparams.path.empty() ? p.path_tgt : params.draft.mparams.path.c_str();
        p.n_ctx_draft = params.draft.eagle_n_ctx;
        p.n_vocab_draft = params.draft.eagle_n_vocab;
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

    ~common_speculative_impl_eagle() override {
        if (!counts_.is_empty()) {
            SPC_INF("%s\n", counts_.text().c_str());
        }
        eagle_drafts_free(drafts_);
    }

    void begin(llama_seq_id seq_id, const llama_tokens & prompt) override {
        set_text(seq_id, prompt);
        rounds_->new_text(seq_id);
    }

    // The context has already passed the states to the engine.
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
        rounds_->model_drafted((int) requests.size(), n_steps, start_us);
    }

    // The positions of a sequence's next rows show how far it was truncated.
    void accept(llama_seq_id seq_id, uint16_t n_accepted, bool is_other) override {
        if (!is_other) {
            rounds_->verified(seq_id, (int) n_proposed_[seq_id], n_accepted);
            verdict_.verified((int) n_proposed_[seq_id], n_accepted);
            if (verdict_.is_due()) {
                SPC_WRN("%s\n", verdict_.text().c_str());
            }
            counts_.verified((int) n_proposed_[seq_id], n_accepted);
            if (counts_.is_due()) {  // `serve` reads it
                SPC_INF("%s\n", counts_.text().c_str());
            }
        }
    }

    // Returns the draft's state of a sequence whose next row is at `pos`; empty if there is none.
    std::vector<char> save(llama_seq_id seq, llama_pos pos) const {
        std::vector<char> data(eagle_drafts_state_size(drafts_, seq, pos));
        const bool saved =
            !data.empty() && eagle_drafts_state_save(drafts_, seq, data.data(), (int64_t) data.size()) == EAGLE_OK;
        return saved ? data : std::vector<char>();
    }

    void load(llama_seq_id seq, llama_pos pos, const std::vector<char> & data) {
        const char * given = data.empty() ? nullptr : data.data();
        if (eagle_drafts_state_load(drafts_, seq, given, (int64_t) data.size(), pos) != EAGLE_OK) {
            SPC_WRN("the draft restarts: %s\n", eagle_last_error());
        }
    }

  private:
    eagle_drafts * drafts_ = nullptr;
    std::shared_ptr<eagle_rounds> rounds_;
    std::vector<llama_tokens> drafted_;  // per sequence
    std::vector<int32_t> n_proposed_;
    std::vector<size_t> n_text_;  // per sequence: tokens before the last round
    eagle_draft_verdict verdict_;
    eagle_draft_counts counts_;

    void set_text(llama_seq_id seq, const llama_tokens & text) {
        eagle_drafts_text(drafts_, seq, text.data(), (int32_t) text.size());
        n_text_[seq] = text.size();
    }

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
            if (dp.prompt->size() < n_text_[seq]) {  // the context was shifted
                set_text(seq, *dp.prompt);
            }
            n_text_[seq] = dp.prompt->size();
            const int32_t length = rounds_->length(seq, EAGLE_SOURCE_MODEL);
            if (length > 0) {
                requests.push_back({seq, dp.pos0, dp.id_last, length, drafted_[seq].data(), 0});
            }
        }
        return requests;
    }
};

// Returns our implementation of `type`, null if upstream's is used. Our implementations share `rounds`; the first one
// creates it.
static std::unique_ptr<common_speculative_impl> eagle_make_impl(common_speculative_type type,
                                                                const common_params_speculative & params,
                                                                uint32_t n_seq,
                                                                std::shared_ptr<eagle_rounds> & rounds) {
    const llama_model * model = params.draft.eagle_model;
    const bool has_model = eagle_drafts_of(params, model);
    const bool is_model = eagle_drafts_of(params, model, type);
    // Without --eagle-draft-length or a model of ours, llama.cpp's own look-up is used.
    const bool is_lookup =
        type == COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE && (has_model || !params.draft.eagle_length.empty());
    if (!rounds && (is_model || is_lookup)) {
        rounds = std::make_shared<eagle_rounds>((int) n_seq, params.draft, has_model);
    }
    if (is_model) {
        return std::make_unique<common_speculative_impl_eagle>(type, params, n_seq, rounds);
    }
    if (is_lookup) {
        return std::make_unique<common_speculative_impl_eagle_lookup>(params, n_seq, rounds);
    }
    return nullptr;
}
