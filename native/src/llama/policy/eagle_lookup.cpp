// The C functions of eagle_lookup.h: the texts of the sequences, and what follows their newest tokens.

#include "eagle_lookup.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "eagle_arguments.h"
#include "eagle_lookup_file.h"
#include "eagle_ngrams.h"

using eagle::Error;
using eagle::format;
using eagle::guarded;
using eagle::require;

namespace {

// Passes a failure of another C function on.
void require_ok(int32_t status) {
    if (status != EAGLE_OK) {
        throw Error((eagle_status) status, eagle_last_error());
    }
}

}  // namespace

struct eagle_lookup {
    const int n_gram, n_min;
    std::vector<std::vector<llama_token>> texts;  // by sequence
    eagle::Ngrams ngrams;
    eagle::LookupFile file;
    std::string notice;
    bool has_learned = false;

    void open(const char * path, const llama_vocab & vocab) {
        eagle::LookupFile found(path, vocab);
        notice = found.read(ngrams);
        file = std::move(found);
    }

    void save() {
        if (!file.empty() && has_learned) {
            file.write(ngrams);
            has_learned = false;
        }
    }

    void begin(llama_seq_id seq, const llama_token * ids, int n) {
        auto & text = texts[seq];
        const auto shared = std::mismatch(text.begin(), text.end(), ids, ids + n).first - text.begin();
        text.resize(shared);
        extend(seq, ids + shared, n - (int) shared);
    }

    // An n-gram is learned with the token after it, so that the end of a text never finds itself.
    void extend(llama_seq_id seq, const llama_token * ids, int n) {
        auto & text = texts[seq];
        has_learned = has_learned || n > 0;
        for (int i = 0; i < n; i++) {
            for (int size = n_min; size <= std::min(n_gram, (int) text.size()); size++) {
                ngrams.observe(eagle::Ngrams::hash(text.data() + text.size() - size, size), ids[i]);
            }
            text.push_back(ids[i]);
        }
    }

    // n_match: tokens that the first one was found by.
    int draft(llama_seq_id seq, llama_token id_last, llama_token * ids, int n_max, int & n_match) const {
        n_match = 0;
        const auto & text = texts[seq];
        std::vector<llama_token> tail(text.end() - std::min<size_t>(text.size(), n_gram - 1), text.end());
        tail.push_back(id_last);
        for (int i = 0; i < n_max; i++) {
            int size = 0;
            const llama_token next = follows(tail, size);
            if (next < 0) {
                return i;
            }
            n_match = i == 0 ? size : n_match;
            ids[i] = next;
            tail.push_back(next);
        }
        return n_max;
    }

  private:
    llama_token follows(const std::vector<llama_token> & tail, int & size) const {
        for (size = std::min(n_gram, (int) tail.size()); size >= n_min; size--) {
            const llama_token found = ngrams.find(eagle::Ngrams::hash(tail.data() + tail.size() - size, size));
            if (found >= 0) {
                return found;
            }
        }
        return -1;
    }
};

namespace {

constexpr int32_t LONGEST_NGRAM = 32;  // tokens: each size is an entry of the table

void require_sequence(const eagle_lookup * lookup, llama_seq_id seq) {
    require(lookup, "lookup");
    if (seq < 0 || seq >= (llama_seq_id) lookup->texts.size()) {
        throw Error(EAGLE_ERR_ARGUMENT, format("sequence %d of %zu", seq, lookup->texts.size()));
    }
}

}  // namespace

int32_t eagle_lookup_new(int32_t n_seq, int32_t n_gram, int32_t n_min, eagle_lookup ** out) {
    return guarded("eagle_lookup_new", [&] {
        require(out, "out");
        *out = nullptr;
        if (n_seq < 1 || n_min < 1 || n_gram < n_min || n_gram > LONGEST_NGRAM) {
            throw Error(EAGLE_ERR_ARGUMENT, format("%d sequences, n-grams of %d to %d tokens", n_seq, n_min, n_gram));
        }
        *out = new eagle_lookup{n_gram, n_min, std::vector<std::vector<llama_token>>(n_seq), {}, {}, {}, false};
    });
}

void eagle_lookup_free(eagle_lookup * lookup) {
    delete lookup;
}

int32_t eagle_lookup_open(eagle_lookup * lookup, const llama_vocab * vocab, const char * path) {
    return guarded("eagle_lookup_open", [&] {
        require(lookup, "lookup");
        require(vocab, "vocab");
        require(path, "path");
        lookup->open(path, *vocab);
    });
}

const char * eagle_lookup_notice(const eagle_lookup * lookup) {
    return lookup ? lookup->notice.c_str() : "";
}

int32_t eagle_lookup_save(eagle_lookup * lookup) {
    return guarded("eagle_lookup_save", [&] {
        require(lookup, "lookup");
        lookup->save();
    });
}

int32_t eagle_lookup_begin(eagle_lookup * lookup, llama_seq_id seq, const llama_token * ids, int32_t n) {
    return guarded("eagle_lookup_begin", [&] {
        require_sequence(lookup, seq);
        lookup->begin(seq, ids, n);
    });
}

int32_t eagle_lookup_extend(eagle_lookup * lookup, llama_seq_id seq, const llama_token * ids, int32_t n) {
    return guarded("eagle_lookup_extend", [&] {
        require_sequence(lookup, seq);
        lookup->extend(seq, ids, n);
    });
}

int32_t eagle_lookup_draft(const eagle_lookup * lookup, llama_seq_id seq, llama_token id_last, llama_token * ids,
                           int32_t n_max, int32_t * n_out, int32_t * n_match) {
    return guarded("eagle_lookup_draft", [&] {
        require_sequence(lookup, seq);
        require(n_out, "n_out");
        require(n_match, "n_match");
        *n_out = lookup->draft(seq, id_last, ids, n_max, *n_match);
    });
}

int32_t eagle_lookup_round(eagle_lookup * lookup, eagle_policy * policy, const llama_token * came, int32_t n_came,
                           llama_token * ids, struct eagle_policy_draft * draft) {
    return guarded("eagle_lookup_round", [&] {
        require(draft, "draft");
        require_sequence(lookup, draft->seq);
        if (n_came < 1) {
            throw Error(EAGLE_ERR_ARGUMENT, "a round begins with the token that follows the text");
        }
        lookup->extend(draft->seq, came, n_came - 1);
        require_ok(eagle_policy_text(policy, draft->seq, came + 1, n_came - 1));
        if (eagle_policy_wants_offer(policy)) {
            const int64_t start_us = ggml_time_us();
            int n_match = 0;
            const int n = lookup->draft(draft->seq, came[n_came - 1], ids, draft->n_max, n_match);
            const double ms = (double) (ggml_time_us() - start_us) / 1000.0;
            require_ok(eagle_policy_offer(policy, draft->seq, ids, n, n_match, ms));
        }
        require_ok(eagle_policy_choose(policy, draft, 1));
    });
}
