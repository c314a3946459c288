// Regex: regular expressions of tokenizer.json, written in Oniguruma's Ruby syntax, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"

namespace vlcache {

// The same expression in PCRE2's syntax. Throws Error(kUnsupported) naming `where`, the position and the construct if
// it means something else in PCRE2 or is not supported here.
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

  // Cuts `text` (valid UTF-8) into matches and the text between them, in order, into `out` (cleared first). Empty
  // matches count, but not directly after another match. Throws Error(kInput) when the search reaches its step limit.
  void cut(std::string_view text, std::vector<TextMatch>& out) const {
    cut(text, out, [](size_t) {});
  }
  // `check` is called with the size of `out` after every match; what it throws is passed on.
  void cut(std::string_view text, std::vector<TextMatch>& out, FunctionRef<void(size_t)> check) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace vlcache
