#include "base/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace vlcache {
namespace {

constexpr size_t kLongestWord = 64;  // longer words are not typing mistakes

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string did_you_mean(std::string_view word, std::span<const std::string> known) {
  if (word.size() > kLongestWord) return "";
  const std::string* best = nullptr;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : known) {
    const size_t d = edit_distance(word, candidate);
    if (d < least && d <= std::max<size_t>(1, candidate.size() / 3)) {
      least = d;
      best = &candidate;
    }
  }
  const auto same = std::ranges::find_if(known, [&](const auto& k) { return std::ranges::is_permutation(word, k); });
  if (best == nullptr && same != known.end()) best = &*same;
  return best == nullptr ? "" : " (did you mean '" + *best + "'?)";
}

}  // namespace vlcache
