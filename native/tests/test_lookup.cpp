// Look-up: what most likely follows the newest tokens, in this text, another one, and those that are gone.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "eagle_lookup.h"

namespace {

using Tokens = std::vector<llama_token>;

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

struct Lookup {
    eagle_lookup * impl = nullptr;
    mutable int32_t n_match = -1;  // of the last draft

    explicit Lookup(int n_seq = 1, int n_gram = 3, int n_min = 2) {
        require(eagle_lookup_new(n_seq, n_gram, n_min, &impl) == EAGLE_OK, "a look-up");
    }
    Lookup(const Lookup &) = delete;
    ~Lookup() { eagle_lookup_free(impl); }

    void begin(const Tokens & text, int seq = 0) { eagle_lookup_begin(impl, seq, text.data(), (int32_t) text.size()); }
    void extend(const Tokens & ids, int seq = 0) { eagle_lookup_extend(impl, seq, ids.data(), (int32_t) ids.size()); }

    Tokens draft(llama_token id_last, int n_max, int seq = 0) const {
        Tokens ids(n_max);
        int32_t n = -1;
        require(eagle_lookup_draft(impl, seq, id_last, ids.data(), n_max, &n, &n_match) == EAGLE_OK, "a draft");
        ids.resize(n);
        return ids;
    }
};

void require_continuations() {
    Lookup lookup;
    lookup.begin({1, 2, 3, 4, 5, 1, 2, 3, 9, 9, 1, 2});
    require(lookup.draft(3, 2) == Tokens{9, 9}, "the newest of two that followed once");
    require(lookup.draft(3, 1) == Tokens{9}, "no more than asked for");
    require(lookup.n_match == 3, "the longest match");
    require(lookup.draft(7, 4).empty() && lookup.n_match == 0, "nothing where the tokens never stood");
    lookup.extend({3, 4, 1, 2, 3, 4, 1, 2});
    require(lookup.draft(3, 1) == Tokens{4}, "the more frequent one");
    lookup.extend({3, 8, 1, 2, 3, 8, 1, 2, 3, 8, 1, 2});
    require(lookup.draft(3, 1) == Tokens{8}, "until another one is");
    Lookup longer;
    longer.begin({1, 2, 3, 4, 5, 6, 2, 3, 7, 8, 2, 3, 7, 8, 1, 2});
    require(longer.draft(3, 2) == Tokens{4, 5}, "a longer match counts more than a frequent one");
}

void require_repetition() {
    Lookup lookup;
    lookup.begin({5, 6, 5, 6});
    require(lookup.draft(5, 8) == Tokens{6, 5, 6, 5, 6, 5, 6, 5}, "a repetition goes on beyond the end of the text");
}

void require_shared_texts() {
    Lookup lookup(2);
    lookup.begin({1, 2, 3, 4, 5}, 0);
    lookup.begin({9, 1}, 1);
    require(lookup.draft(2, 3, 1) == Tokens{3, 4, 5}, "what another sequence holds");
    lookup.begin({7}, 0);
    require(lookup.draft(2, 3, 1) == Tokens{3, 4, 5}, "and what it held");
    lookup.begin({}, 1);
    require(lookup.draft(2, 3, 1).empty(), "a text that begins has too few tokens");
}

// The same text again, a turn longer: what is known of it counts once.
void require_turns_learned_once() {
    Lookup lookup(2);
    lookup.begin({1, 2, 8, 1, 2, 8}, 1);
    for (int i = 0; i < 20; i++) {
        lookup.begin({1, 2, 3, 4}, 0);
    }
    lookup.extend({1, 2, 8}, 1);
    lookup.begin({1}, 1);
    require(lookup.draft(2, 1, 1) == Tokens{8}, "a prompt that is sent again is learned once");
}

void require_bounded_memory() {
    Lookup lookup;
    Tokens text(400000);
    for (size_t i = 0; i < text.size(); i++) {
        text[i] = (llama_token) (i * 2654435761u % 1000003);
    }
    lookup.begin(text);
    const size_t end = text.size() - 100;
    lookup.begin({text[end]});
    require(lookup.draft(text[end + 1], 1) == Tokens{text[end + 2]}, "new texts take the place of old ones");
}

void require_refusals() {
    eagle_lookup * none = nullptr;
    require(eagle_lookup_new(1, 2, 3, &none) == EAGLE_ERR_ARGUMENT && !none, "sizes the wrong way round");
    require(eagle_lookup_new(0, 3, 2, &none) == EAGLE_ERR_ARGUMENT, "no sequence");
    Lookup lookup;
    require(eagle_lookup_begin(lookup.impl, 1, nullptr, 0) == EAGLE_ERR_ARGUMENT, "a sequence there is not");
}

}  // namespace

int main() {
    require_continuations();
    require_repetition();
    require_shared_texts();
    require_turns_learned_once();
    require_bounded_memory();
    require_refusals();
    std::puts("ok");
}
