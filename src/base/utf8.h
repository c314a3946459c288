// Walks valid UTF-8, and makes text valid the way Python's errors="replace" does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vlcache {

// The code point at text[i], advancing i past it, at most to the end of the text. `text` must be valid UTF-8 and i at
// the start of a character.
char32_t next_code_point(std::string_view text, size_t& i);

void append_utf8(std::string& out, char32_t c);

bool is_valid_utf8(std::string_view text);

// Invalid bytes become U+FFFD, one for each maximal prefix of a character (Unicode 3.9, "substitution of maximal
// subparts"), which is what Python's bytes.decode("utf-8", "replace") and Rust's from_utf8_lossy give.
std::string to_valid_utf8(std::string_view text);

// The same, fed in parts that may cut characters: push appends the decided characters, finish the rest.
class Utf8Assembler {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  std::string pending_;  // the beginning of a character, at most 3 bytes
};

}  // namespace vlcache
