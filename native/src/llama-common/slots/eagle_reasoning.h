// The number of an answer's tokens that are reasoning, which OpenAI's usage reports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

// Returns the number of tokens that hold a part of `reasoning`. text: the answer as the model has written it. ends:
// size of the text after each token. Reasoning may have several parts in the text, with markup between them.
inline int32_t eagle_count_reasoning(const std::string & text, const std::string & reasoning,
                                     const std::vector<size_t> & ends) {
    int32_t n_tokens = 0;
    size_t at = 0;    // in the text
    size_t next = 0;  // token
    for (size_t done = 0; done < reasoning.size();) {
        size_t found = std::string::npos;
        size_t n_least = 0;
        size_t n_most = std::min(reasoning.size() - done, text.size() - at);  // the longest part that is in the text
        while (n_least < n_most) {
            const size_t n = n_least + (n_most - n_least + 1) / 2;
            const size_t begin = text.find(reasoning.substr(done, n), at);
            if (begin == std::string::npos) {
                n_most = n - 1;
            } else {
                n_least = n;
                found = begin;
            }
        }
        if (n_least == 0) {
            done++;  // a character that the parser has added
            continue;
        }
        done += n_least;
        at = found + n_least;
        while (next < ends.size() && ends[next] <= found) {
            next++;
        }
        for (; next < ends.size() && (next == 0 ? 0 : ends[next - 1]) < at; next++) {
            n_tokens++;
        }
    }
    return n_tokens;
}
