// Regular expressions of tokenizer.json: written for Oniguruma's Ruby syntax, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// The same expression in PCRE2's syntax. Throws Error(kUnsupported) naming `where`, the position and the construct when
// it means something else there, or nothing here.
std::string translate_oniguruma(std::string_view pattern, std::string_view where);

struct TextMatch {
  size_t start, end;
  bool is_match;  // else the text between two matches
};

// An expression compiled once; immutable, any number of threads may search with it.
class Regex {
 public:
  Regex(std::string_view oniguruma_pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Cuts `text` (valid UTF-8) into matches and what lies between, in order, into `out` (cleared first). Empty matches
  // count, but not directly behind another match. Throws Error(kInput) when the search runs into its step limit.
  void cut(std::string_view text, std::vector<TextMatch>& out) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace vlcache
