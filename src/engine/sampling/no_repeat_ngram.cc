#include "engine/sampling/no_repeat_ngram.h"

namespace vlcache {

// The text's last n - 1 tokens are searched in the text by the algorithm of Knuth, Morris and Pratt: comparing
// each place by itself would cost n times the text where it repeats one token.
void add_ngram_ends(std::span<const int32_t> text, int32_t n, std::vector<int32_t>& found) {
  if (n < 1 || text.size() < static_cast<size_t>(n)) return;
  if (n == 1) {
    found.insert(found.end(), text.begin(), text.end());
    return;
  }
  const std::span<const int32_t> last = text.last(static_cast<size_t>(n) - 1);
  std::vector<size_t> border(last.size());  // tokens that begin and end last[0..i]
  const auto advance = [&](size_t matched, int32_t token) {
    while (matched > 0 && (matched == last.size() || token != last[matched])) matched = border[matched - 1];
    return matched + (token == last[matched] ? 1 : 0);
  };
  for (size_t i = 1; i < last.size(); ++i) border[i] = advance(border[i - 1], last[i]);
  size_t matched = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    matched = advance(matched, text[i]);
    if (matched == last.size()) found.push_back(text[i + 1]);
  }
}

}  // namespace vlcache
