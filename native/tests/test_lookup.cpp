// Look-up in a text: what followed the last occurrence of the newest tokens, and how often that was right.

#include <cstdio>
#include <cstdlib>

#include "../src/llama-common/eagle_lookup.h"

namespace {

using Tokens = std::vector<llama_token>;

void require(bool condition, const char * what) {
    if (!condition) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

}  // namespace

int main() {
    eagle_lookup lookup;
    const Tokens text = {1, 2, 3, 4, 5, 1, 2, 3, 9, 9, 1, 2};
    lookup.begin(text);
    require(lookup.draft(text, 3, 4) == Tokens{9, 9, 1, 2}, "what followed three tokens");
    require(lookup.draft(text, 3, 1) == Tokens{9}, "no more than asked for");
    require(lookup.draft(text, 7, 4).empty(), "nothing where they never stood");
    require(lookup.draft({8, 2}, 3, 4).empty(), "nor in another text");
    lookup.begin({5, 6, 7, 5});
    require(lookup.draft({5, 6, 7, 5}, 6, 4) == Tokens{7, 5, 6}, "up to the end of the text");
    lookup.begin({});
    require(lookup.draft({}, 3, 4).empty() && lookup.draft({3}, 4, 4).empty(), "a text that begins");

    Tokens loop;
    double before = lookup.rate();
    for (int i = 0; i < 60; i++) {
        lookup.draft(loop, i % 5, 4);
        loop.push_back(i % 5);
    }
    require(lookup.rate() > before && lookup.rate() > 0.9, "right ones are counted");
    before = lookup.rate();
    for (int i = 0; i < 10; i++) {  // 0 1 2 3 4, then always another token
        for (const llama_token id : {0, 1, 100 + i}) {
            lookup.draft(loop, id, 4);
            loop.push_back(id);
        }
    }
    require(lookup.rate() < before, "and wrong ones");
    std::puts("ok");
}
