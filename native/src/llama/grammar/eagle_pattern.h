// Translation of the regular expressions in JSON schemas to GBNF, used by the Python converter and the server.
#pragma once

#include <string>

namespace eagle {

// Returns a rule for the JSON strings (with quotes) that contain a match. Supports features whose meaning is the same
// in ECMAScript and Python; throws an Error that names any other feature.
std::string pattern_rule(const std::string & pattern);

}  // namespace eagle
