// Names of properties in a grammar: all but the ones that a schema lists.
#pragma once

#include <cctype>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "trie.h"

// Returns a character as a class of a grammar has it; nothing for one that JSON's texts contain only escaped.
inline std::string eagle_class_char(uint32_t character) {
    if (character < 0x20 || character == '"' || character == '\\' || character == 0x7F) {
        return "";
    }
    char text[16];
    snprintf(text, sizeof(text), "\\U%08X", character);
    return character < 0x80 && std::isalnum((int) character) ? std::string(1, (char) character) : text;
}

// Returns the rule of the texts that continue a node of the trie and are no listed name. Those that share a beginning
// with one have no escapes there, so that none is written in another way.
inline std::string eagle_other_ends(const common_trie & names, size_t index, const std::string & char_rule) {
    std::string rejected, rule;
    for (const auto & [character, child] : names.nodes.at(index).children) {
        const std::string text = eagle_class_char(character);
        if (!text.empty()) {
            const auto & node = names.nodes.at(child);
            const std::string longer = "(" + eagle_other_ends(names, child, char_rule) + ")";
            rejected += text;
            rule += "[" + text + "] " + (node.children.empty() ? char_rule + "+" : longer) +
                    (node.pattern < 0 ? "? | " : " | ");
        }
    }
    return rule + "[^\"\\\\\\x7F\\x00-\\x1F" + rejected + "] " + char_rule + "*";
}

// Returns the rule of a name in quotes that is none of the listed.
inline std::string eagle_other_names(const std::vector<std::string> & listed, const std::string & char_rule) {
    const common_trie names(listed);
    const bool may_be_empty = names.nodes.at(0).pattern < 0;
    return "[\"] ( " + eagle_other_ends(names, 0, char_rule) + " )" + (may_be_empty ? "?" : "") + " [\"]";
}
