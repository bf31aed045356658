// Sets of characters of a regular expression, as rules for their spelling inside a JSON string.
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

// Sorted, without overlaps and surrogates.
Characters normalized(Characters ranges);

Characters complement(const Characters & ranges);

// The class of an escape: d, w or s, and D, W or S for the others. What ECMAScript and Python class differently belongs
// to neither: \d, \w are ASCII, and \W excludes letters of all scripts.
Characters class_of(char escape);

// What has to be excluded from a negated set that names the class of a lower-case escape.
Characters wide_class_of(char escape);

// All characters but line ends.
Characters dot();

// One character of the set in a JSON string, as a GBNF symbol. "" when the set is empty.
std::string json_rule(const Characters & ranges);

}  // namespace eagle
