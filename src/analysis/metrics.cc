#include "analysis/metrics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/nearest.h"

namespace vlcache {
namespace {

struct Named {
  std::string_view name;
  Metric metric;
};
constexpr std::array<Named, 6> kMetrics{{{"exact", Metric::kExact},
                                         {"normalised", Metric::kNormalised},
                                         {"anls", Metric::kAnls},
                                         {"relaxed", Metric::kRelaxed},
                                         {"vqa", Metric::kVqa},
                                         {"choice", Metric::kChoice}}};

constexpr double kLeastSimilarity = 0.5;  // of ANLS
constexpr double kRelaxed = 0.05;
constexpr double kAgreeing = 3;  // annotators that make an answer wholly right
constexpr size_t kLongest = 4096;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
  return s;
}

// One blank between words, no case.
std::string plain(std::string_view s) {
  std::string out;
  for (const char c : trimmed(s)) {
    if (is_space(c)) {
      if (out.back() != ' ') out += ' ';
    } else {
      out += lower(c);
    }
  }
  return out;
}

bool is_article(std::string_view word) { return word == "a" || word == "an" || word == "the"; }

// plain(), without articles and punctuation (a point or comma between digits stays).
std::string normalised(std::string_view s) {
  const std::string text = plain(s);
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool letter = static_cast<unsigned char>(c) >= 0x80 || is_digit(c) || (c >= 'a' && c <= 'z');
    const bool inside =
        (c == '.' || c == ',') && i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (letter || inside)
      kept += c == ',' ? '.' : c;
    else if (!kept.empty() && kept.back() != ' ')
      kept += ' ';
  }
  std::string out;
  std::string_view rest = trimmed(kept);
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    if (!is_article(word)) out += (out.empty() ? "" : " ") + std::string(word);
  }
  return out;
}

double similarity(std::string_view a, std::string_view b) {
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  if (a.empty() && b.empty()) return 1;
  const double s = 1 - static_cast<double>(edit_distance(a, b)) / static_cast<double>(std::max(a.size(), b.size()));
  return s < kLeastSimilarity ? 0 : s;
}

// "1,234.5", "12 %", "$3": a number with the signs that surround it in charts.
std::optional<double> number(std::string_view s) {
  std::string digits;
  for (const char c : trimmed(s)) {
    if (c != ',' && c != '%' && c != '$' && c != ' ') digits += c;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value))
    return {};
  return value;
}

bool relaxed_equal(std::string_view given, std::string_view answer) {
  const auto x = number(given), y = number(answer);
  if (x && y) return *y == 0 ? *x == 0 : std::abs(*x - *y) <= kRelaxed * std::abs(*y);
  return plain(given) == plain(answer);
}

// "B", "(b) 12", "Answer: B.": the first letter that stands alone.
char letter_of(std::string_view s) {
  const auto word = [](char c) { return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z'); };
  for (size_t i = 0; i < s.size(); ++i) {
    const char c = lower(s[i]);
    if (c < 'a' || c > 'z') continue;
    if ((i == 0 || !word(s[i - 1])) && (i + 1 == s.size() || !word(s[i + 1]))) return c;
  }
  return 0;
}

double score_one(Metric metric, std::string_view given, std::string_view answer) {
  switch (metric) {
    case Metric::kExact:
      return trimmed(given) == trimmed(answer);
    case Metric::kNormalised:
    case Metric::kVqa:
      return normalised(given) == normalised(answer);
    case Metric::kAnls:
      return similarity(plain(given), plain(answer));
    case Metric::kRelaxed:
      return relaxed_equal(given, answer);
    case Metric::kChoice: {
      const char letter = letter_of(given);
      return (letter != 0 && letter == letter_of(answer)) || normalised(given) == normalised(answer);
    }
  }
  return 0;
}

}  // namespace

std::optional<Metric> metric_from_name(std::string_view name) {
  const auto* it = std::ranges::find(kMetrics, name, &Named::name);
  return it == kMetrics.end() ? std::nullopt : std::optional(it->metric);
}

std::string_view metric_name(Metric metric) { return std::ranges::find(kMetrics, metric, &Named::metric)->name; }

std::string metric_names() {
  std::string names;
  for (const Named& m : kMetrics) names += (names.empty() ? "" : ", ") + std::string(m.name);
  return names;
}

double score_answer(Metric metric, std::string_view given, std::span<const std::string> answers) {
  double best = 0, sum = 0;
  for (const std::string& answer : answers) {
    const double score = score_one(metric, given, answer);
    best = std::max(best, score);
    sum += score;
  }
  // With fewer annotators than required, one is enough.
  if (metric == Metric::kVqa && answers.size() >= static_cast<size_t>(kAgreeing)) return std::min(1.0, sum / kAgreeing);
  return best;
}

}  // namespace vlcache
