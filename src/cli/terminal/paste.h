// Pasted: collects what a terminal sends between ESC[200~ and ESC[201~ (bracketed paste), whatever it contains.
#pragma once

#include <string>
#include <string_view>

namespace vlcache {

class Pasted {
 public:
  static constexpr std::string_view kBegin = "\x1b[200~", kEnd = "\x1b[201~";

  // Receives the next byte after kBegin. Returns true once kEnd is complete.
  bool add(char c);
  // After kEnd: `more` arrived together with it. If the pasted text contained kEnd itself, `more` begins with the rest
  // of the paste, which is moved here.
  void take_rest(std::string& more);
  // The pasted text: line breaks as \n, none at the end, without control characters except tabs.
  std::string text() const;

 private:
  std::string bytes_;
};

}  // namespace vlcache
