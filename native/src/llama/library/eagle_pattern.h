// Regular expressions of JSON schemas as GBNF: the one translation, of Python's converter and the server's.
#pragma once

#include <string>

namespace eagle {

// A rule for the JSON strings, quotes included, in which the pattern is found. Each feature of ECMAScript's and
// Python's expressions is obeyed where both agree, or refused by its name in an Error.
std::string pattern_rule(const std::string & pattern);

}  // namespace eagle
