// Lists characters newer than the Unicode versions of PCRE2 and ICU in Debian 12, with the reference's properties.
#pragma once

#include <cstdint>

namespace vlcache {

struct NewCharacters {
  uint32_t first, last;
  char category[3];   // general category, two letters
  uint32_t stand_in;  // an older character of the same category, UTF-8 length, case and, where possible, script
};
extern const NewCharacters kNewCharacters[];  // ascending, assigned after Unicode 14
extern const int kNewCharactersCount;

struct NewLowercase {
  uint32_t first, last;
  int32_t delta;  // lower case = code point + delta
};
extern const NewLowercase kNewLowercase[];
extern const int kNewLowercaseCount;

}  // namespace vlcache
