// Character sets of regular expressions, and GBNF rules for their characters inside a JSON string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eagle {

struct CharacterRange {
    uint32_t first;
    uint32_t last;
};

using Characters = std::vector<CharacterRange>;

// Sorts the ranges, merges overlaps and removes surrogates.
Characters normalized(Characters ranges);

Characters complement(const Characters & ranges);

// Returns the class of the escape d, w or s, or its complement for D, W or S. Characters that ECMAScript and Python
// classify differently belong to neither: \d and \w are ASCII, and \W excludes letters of all scripts.
Characters class_of(char escape);

// Returns the characters that a negated set must exclude if it contains this lower-case escape.
Characters wide_class_of(char escape);

// Returns all characters except line ends.
Characters dot();

// Returns a GBNF symbol for one character of the set inside a JSON string; "" if the set is empty.
std::string json_rule(const Characters & ranges);

}  // namespace eagle
