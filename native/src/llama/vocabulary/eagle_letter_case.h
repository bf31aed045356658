// Case of letters: Unicode's categories Lu and Lt, or Ll.
#pragma once

#include <cstdint>

namespace eagle {

enum class LetterCase { none, upper, lower };

LetterCase letter_case(uint32_t character);

}  // namespace eagle
