// Log-probabilities of a prompt's tokens, which a request's `n_prompt_probs` asks for. All rows of the prompt
// have logits, so it is evaluated in pieces of few rows, without the slot's cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common.h"
#include "json.h"

constexpr int32_t EAGLE_PROMPT_ROWS = 32;  // rows of a piece: each has the logits of all tokens

size_t validate_utf8(const std::string & text);  // of server-common.h

class eagle_prompt_probs {
  public:
    // n_alternatives: the likeliest tokens that are kept for each token.
    eagle_prompt_probs(llama_context * ctx, int32_t n_alternatives)
        : vocab_(llama_model_get_vocab(llama_get_model(ctx))), n_alternatives_(n_alternatives) {}

    size_t size() const { return tokens_.size(); }

    // Adds a token. logits: of the row before it; null for the first token.
    void add(llama_token token, const float * logits) {
        row row = {token, 0.0, {}};
        if (logits) {
            const int32_t n_vocab = llama_vocab_n_tokens(vocab_);
            const double log_sum = log_sum_of(logits, n_vocab);
            row.logprob = logits[token] - log_sum;
            for (const int32_t other : likeliest(logits, n_vocab)) {
                row.alternatives.emplace_back(other, logits[other] - log_sum);
            }
        }
        tokens_.push_back(std::move(row));
    }

    // Returns the tokens in llama.cpp's form. The first of them has no probability.
    common_json to_json() const {
        common_json list = common_json::array();
        for (size_t i = 0; i < tokens_.size(); i++) {
            common_json entry = entry_of(tokens_[i].token, tokens_[i].logprob);
            entry["top_logprobs"] = common_json::array();
            if (i == 0) {
                entry["logprob"] = nullptr;
            } else {
                for (const auto & other : tokens_[i].alternatives) {
                    entry["top_logprobs"].push_back(entry_of(other.first, other.second));
                }
            }
            list.push_back(entry);
        }
        return list;
    }

  private:
    struct row {
        llama_token token;
        double logprob;
        std::vector<std::pair<llama_token, double>> alternatives;
    };

    static double log_sum_of(const float * logits, int32_t n_vocab) {
        const float largest = *std::max_element(logits, logits + n_vocab);
        double sum = 0.0;
        for (int32_t i = 0; i < n_vocab; i++) {
            sum += std::exp(logits[i] - largest);
        }
        return largest + std::log(sum);
    }

    // Returns the tokens with the largest logits, the largest first.
    std::vector<int32_t> likeliest(const float * logits, int32_t n_vocab) const {
        const auto is_before = [&](int32_t a, int32_t b) {
            return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        };
        std::vector<int32_t> found;  // a heap with the least likely of them in front
        for (int32_t i = 0; i < n_vocab && n_alternatives_ > 0; i++) {
            const bool is_full = (int32_t) found.size() == n_alternatives_;
            if (is_full && !is_before(i, found.front())) {
                continue;
            }
            if (is_full) {
                std::pop_heap(found.begin(), found.end(), is_before);
                found.pop_back();
            }
            found.push_back(i);
            std::push_heap(found.begin(), found.end(), is_before);
        }
        std::sort_heap(found.begin(), found.end(), is_before);
        return found;
    }

    common_json entry_of(llama_token token, double logprob) const {
        std::string text = common_token_to_piece(vocab_, token, true);
        common_json bytes = common_json::array();
        for (const char byte : text) {
            bytes.push_back((int) (unsigned char) byte);
        }
        text.resize(validate_utf8(text));
        return common_json{{"id", token}, {"token", text}, {"bytes", bytes}, {"logprob", logprob}};
    }

    const llama_vocab * vocab_;
    int32_t n_alternatives_;
    std::vector<row> tokens_;
};

// Reads the number of alternatives that a request wants for each token of its prompt. Every row is evaluated.
template <typename Params>
void eagle_read_prompt_probs(Params & params, const common_json & request) {
    params.eagle_prompt_probs = request.value("n_prompt_probs", -1);
    params.cache_prompt = params.cache_prompt && params.eagle_prompt_probs < 0;
}

inline void eagle_add_prompt(common_json & result, const eagle_prompt_probs * prompt) {
    if (prompt) {
        result["prompt_probabilities"] = prompt->to_json();
    }
}

// Returns the vocabulary's tokens of gaps; -1: it has no such token.
template <typename Meta>
common_json eagle_infill_tokens(const Meta & meta) {
    return common_json{{"pre", meta.fim_pre_token},
                       {"suf", meta.fim_sub_token},
                       {"mid", meta.fim_mid_token},
                       {"rep", meta.fim_rep_token},
                       {"sep", meta.fim_sep_token}};
}

// Returns the number of rows that a piece of the slot's prompt may have.
template <typename Slot>
int32_t eagle_piece_of(const Slot & slot, int32_t n_batch) {
    return slot.task->params.eagle_prompt_probs < 0 ? n_batch : std::min(n_batch, EAGLE_PROMPT_ROWS);
}

// Adds the probabilities of the prompt tokens that follow the rows of a decode. offset: the first token of the decode.
template <typename Slot, typename Batch>
void eagle_read_prompt_probs(Slot & slot, const Batch & batch, int32_t offset) {
    if (!slot.task || slot.task->params.eagle_prompt_probs < 0) {
        return;
    }
    for (int32_t i = 0; i < batch.view.size(); i++) {
        const auto & row = batch.tokens[offset + i];
        if (row.id_slot != slot.id || !row.is_prompt) {
            continue;
        }
        auto & probs = slot.eagle_prompt;
        if (!probs) {
            probs = std::make_shared<eagle_prompt_probs>(slot.ctx_tgt, slot.task->params.eagle_prompt_probs);
            probs->add(row.token, nullptr);
        }
        if (probs->size() < (size_t) slot.task->n_tokens()) {
            probs->add(slot.task->tokens[probs->size()], llama_get_logits_ith(slot.ctx_tgt, i));
        }
    }
}
