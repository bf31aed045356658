#include "eagle_characters.h"

#include <algorithm>

#include "eagle_error.h"

namespace eagle {

namespace {

constexpr uint32_t LAST = 0x10FFFF;
constexpr CharacterRange SURROGATES = {0xD800, 0xDFFF};

// Digit zero of each non-ASCII script.
constexpr uint32_t DIGITS[] = {0x660,  0x6F0,  0x7C0,  0x966,  0x9E6,  0xA66,  0xAE6,  0xB66,  0xBE6,
                               0xC66,  0xCE6,  0xD66,  0xDE6,  0xE50,  0xED0,  0xF20,  0x1040, 0x1090,
                               0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40,
                               0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10};

const Characters DIGIT = {{'0', '9'}};
const Characters WORD = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Characters SPACE = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};

Characters joined(Characters a, const Characters & b) {
    a.insert(a.end(), b.begin(), b.end());
    return normalized(std::move(a));
}

std::string in_class(uint32_t c) {
    return format("\\U%08X", (unsigned) c);
}

// Returns the JSON escape of a character that must be escaped in a string.
std::string escaped(uint32_t c) {
    switch (c) {
    case '"':
        return "\"\\\\\\\"\"";
    case '\\':
        return "\"\\\\\\\\\"";
    case '\b':
        return "\"\\\\b\"";
    case '\f':
        return "\"\\\\f\"";
    case '\n':
        return "\"\\\\n\"";
    case '\r':
        return "\"\\\\r\"";
    case '\t':
        return "\"\\\\t\"";
    default:
        return format("\"\\\\u%04x\"", (unsigned) c);
    }
}

bool is_plain(uint32_t c) {
    return c >= ' ' && c != '"' && c != '\\';
}

bool contains(const Characters & ranges, uint32_t c) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [c](const CharacterRange & range) { return range.first <= c && c <= range.last; });
}

}  // namespace

Characters normalized(Characters ranges) {
    Characters parts;
    for (const CharacterRange & range : ranges) {
        const uint32_t below = std::min(range.last, SURROGATES.first - 1);
        const uint32_t above = std::max(range.first, SURROGATES.last + 1);
        if (range.first <= below) {
            parts.push_back({range.first, below});
        }
        if (above <= range.last) {
            parts.push_back({above, range.last});
        }
    }
    std::sort(parts.begin(), parts.end(),
              [](const CharacterRange & a, const CharacterRange & b) { return a.first < b.first; });
    Characters out;
    for (const CharacterRange & range : parts) {
        if (!out.empty() && range.first <= out.back().last + 1) {
            out.back().last = std::max(out.back().last, range.last);
        } else {
            out.push_back(range);
        }
    }
    return out;
}

Characters complement(const Characters & ranges) {
    Characters out;
    uint32_t next = 0;
    for (const CharacterRange & range : normalized(ranges)) {
        if (range.first > next) {
            out.push_back({next, range.first - 1});
        }
        next = range.last + 1;
    }
    if (next <= LAST) {
        out.push_back({next, LAST});
    }
    return normalized(out);
}

Characters wide_class_of(char escape) {
    if (escape == 's') {
        return joined(SPACE, {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}});
    }
    if (escape == 'w') {  // all non-ASCII characters except general punctuation
        return joined(WORD, {{0x80, 0x200F}, {0x2028, 0x202F}, {0x203F, LAST}});
    }
    Characters digits = DIGIT;
    for (const uint32_t first : DIGITS) {
        digits.push_back({first, first + 9});
    }
    digits.push_back({0x10000, 0x1EFFF});  // scripts of the supplementary planes, below the emoji
    digits.push_back({0x1FBF0, 0x1FBF9});
    return normalized(digits);
}

Characters class_of(char escape) {
    switch (escape) {
    case 'd':
        return DIGIT;
    case 'w':
        return WORD;
    case 's':
        return SPACE;
    default:
        return complement(wide_class_of((char) (escape - 'A' + 'a')));
    }
}

Characters dot() {
    return complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

std::string json_rule(const Characters & ranges) {
    const Characters plain = complement(joined(complement(ranges), {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
    std::string rule;
    for (const CharacterRange & range : plain) {
        rule += in_class(range.first) + (range.last > range.first ? "-" + in_class(range.last) : "");
    }
    if (!rule.empty()) {
        rule = "[" + rule + "]";
    }
    int n_escaped = 0;
    for (uint32_t c = 0; c <= '\\'; c++) {
        if (!is_plain(c) && contains(ranges, c)) {
            rule += (rule.empty() ? "" : " | ") + escaped(c);
            n_escaped++;
        }
    }
    return n_escaped == 0 || rule.empty() ? rule : "(" + rule + ")";
}

}  // namespace eagle
