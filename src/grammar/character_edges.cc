#include "grammar/character_edges.h"

#include <algorithm>
#include <string_view>

#include "base/utf8.h"

namespace vlcache {

void CharacterEdges::add(const CodePointSet& set, int32_t from, int32_t to) {
  ascii(set, from, to);
  for (const CodePoints& r : set) {
    constexpr CodePoints kLengths[] = {{0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, CodePoints::kLast}};
    for (const CodePoints& length : kLengths) {
      const int32_t low = std::max(r.low, length.low), high = std::min(r.high, length.high);
      if (low > high) continue;
      std::string first, last;
      append_utf8(first, static_cast<char32_t>(low));
      append_utf8(last, static_cast<char32_t>(high));
      utf8(first, last, from, to);
    }
  }
}

// The first 128 code points of a set.
void CharacterEdges::ascii(const CodePointSet& set, int32_t from, int32_t to) {
  std::string escaped;
  for (const CodePoints& r : set) {
    for (int32_t c = r.low; c <= std::min(r.high, 0x7F); ++c) {
      if (!is_plain(c)) {
        escaped += static_cast<char>(c);
        continue;
      }
      const int32_t first = c;
      while (c < std::min(r.high, 0x7F) && is_plain(c + 1)) ++c;
      a_.bytes(from, static_cast<uint8_t>(first), static_cast<uint8_t>(c), to);
    }
  }
  if (escaped.empty()) return;
  const auto [after, is_new] = escapes_.try_emplace({escaped, to}, 0);
  if (is_new) after->second = escape(escaped, to);
  a_.bytes(from, '\\', '\\', after->second);
}

// The state after the \ of these characters.
int32_t CharacterEdges::escape(const std::string& characters, int32_t to) {
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const int32_t begin = a_.add_state();
  int32_t hex[] = {-1, -1};  // after \u000 and \u001
  int32_t zeros = -1;
  for (const char c : characters) {
    const size_t i = kShort.find(c);
    if (i != kShort.npos) {
      a_.bytes(begin, static_cast<uint8_t>(kLetters[i]), static_cast<uint8_t>(kLetters[i]), to);
      continue;
    }
    if (zeros < 0) zeros = a_.text(begin, "u00");
    int32_t& state = hex[c < 0x10 ? 0 : 1];
    if (state < 0) state = a_.text(zeros, c < 0x10 ? "0" : "1");
    const auto digit = static_cast<uint8_t>("0123456789abcdef"[static_cast<size_t>(c) % 16]);
    a_.bytes(state, digit, digit, to);
  }
  return begin;
}

// Characters from `low` to `high`, both of the same length in bytes.
void CharacterEdges::utf8(const std::string& low, const std::string& high, int32_t from, int32_t to) {
  const auto byte = [](char c) { return static_cast<uint8_t>(c); };
  if (low.size() == 1) {
    a_.bytes(from, byte(low[0]), byte(high[0]), to);
    return;
  }
  const std::string least(low.size() - 1, '\x80'), most(low.size() - 1, '\xBF');
  const auto below = [&](uint8_t first, uint8_t last, const std::string& rest, const std::string& rest_high) {
    if (first > last) return;
    const auto [next, is_new] = tails_.try_emplace({rest, rest_high, to}, 0);
    if (is_new) {
      const int32_t state = next->second = a_.add_state();
      utf8(rest, rest_high, state, to);
    }
    a_.bytes(from, first, last, tails_[{rest, rest_high, to}]);
  };
  uint8_t first = byte(low[0]), last = byte(high[0]);
  if (first == last) {
    below(first, last, low.substr(1), high.substr(1));
    return;
  }
  if (low.substr(1) != least) below(first, first, low.substr(1), most), ++first;
  if (high.substr(1) != most) below(last, last, least, high.substr(1)), --last;
  below(first, last, least, most);
}

}  // namespace vlcache
