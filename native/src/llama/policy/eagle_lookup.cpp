// The C functions of eagle_lookup.h: the texts of the sequences, and what follows their newest tokens.

#include "eagle_lookup.h"

#include <algorithm>
#include <vector>

#include "eagle_arguments.h"
#include "eagle_ngrams.h"

using eagle::Error;
using eagle::format;
using eagle::guarded;
using eagle::require;

struct eagle_lookup {
    const int n_gram, n_min;
    std::vector<std::vector<llama_token>> texts;  // by sequence
    eagle::Ngrams ngrams;

    void begin(llama_seq_id seq, const llama_token * ids, int n) {
        auto & text = texts[seq];
        const auto shared = std::mismatch(text.begin(), text.end(), ids, ids + n).first - text.begin();
        text.resize(shared);
        extend(seq, ids + shared, n - (int) shared);
    }

    // An n-gram is learned with the token after it, so that the end of a text never finds itself.
    void extend(llama_seq_id seq, const llama_token * ids, int n) {
        auto & text = texts[seq];
        for (int i = 0; i < n; i++) {
            for (int size = n_min; size <= std::min(n_gram, (int) text.size()); size++) {
                ngrams.observe(eagle::Ngrams::hash(text.data() + text.size() - size, size), ids[i]);
            }
            text.push_back(ids[i]);
        }
    }

    int draft(llama_seq_id seq, llama_token id_last, llama_token * ids, int n_max) const {
        const auto & text = texts[seq];
        std::vector<llama_token> tail(text.end() - std::min<size_t>(text.size(), n_gram - 1), text.end());
        tail.push_back(id_last);
        for (int i = 0; i < n_max; i++) {
            const llama_token next = follows(tail);
            if (next < 0) {
                return i;
            }
            ids[i] = next;
            tail.push_back(next);
        }
        return n_max;
    }

  private:
    llama_token follows(const std::vector<llama_token> & tail) const {
        for (int size = std::min(n_gram, (int) tail.size()); size >= n_min; size--) {
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
        *out = new eagle_lookup{n_gram, n_min, std::vector<std::vector<llama_token>>(n_seq), {}};
    });
}

void eagle_lookup_free(eagle_lookup * lookup) {
    delete lookup;
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
                           int32_t n_max, int32_t * n_out) {
    return guarded("eagle_lookup_draft", [&] {
        require_sequence(lookup, seq);
        require(n_out, "n_out");
        *n_out = lookup->draft(seq, id_last, ids, n_max);
    });
}
