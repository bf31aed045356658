// The number of an answer's tokens that are reasoning, which OpenAI's usage reports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

// Returns true if the token from `begin` to `end` of `text` belongs to the reasoning from `from` to `to`: it lies
// within it, or shares more with it than the space before a tag.
inline bool eagle_is_reasoning(const std::string & text, size_t begin, size_t end, size_t from, size_t to) {
    const size_t word = text.find_first_not_of(" \t\r\n", std::max(begin, from));
    return (from <= begin && end <= to) || word < std::min(end, to);
}

// Returns the number of tokens of `reasoning`. text: the answer as the model has written it. ends: size of the text
// after each token. Reasoning may have several parts in the text, with markup between them.
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
            n_tokens += eagle_is_reasoning(text, next == 0 ? 0 : ends[next - 1], ends[next], found, at);
        }
    }
    return n_tokens;
}
