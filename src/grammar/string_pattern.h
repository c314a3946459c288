// String patterns: regular expressions as trees over code points. The syntax is what ECMAScript and Python share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace vlcache {

struct CodePoints {
  static constexpr int32_t kLast = 0x10FFFF;

  int32_t low, high;
};
using CodePointSet = std::vector<CodePoints>;  // ascending, disjoint, without surrogates

// Sorted and joined, surrogates left out.
CodePointSet normalized(CodePointSet set);
CodePointSet complement(const CodePointSet& set, int32_t last = CodePoints::kLast);

struct PatternNode {
  enum class Kind {
    kSet,
    kAll,  // a sequence
    kAny,  // alternatives
    kRepeat,
    kBegin,  // ^
    kEnd,    // $
  };
  Kind kind = Kind::kAll;
  CodePointSet set;
  std::vector<PatternNode> parts;
  int least = 1, most = 1;  // of kRepeat; most -1: unlimited
};

// A text matches if `node` is found in it, and each of `ahead` at its beginning (or not, if `negative`).
struct StringPattern {
  struct Ahead {
    PatternNode node;
    bool negative = false;
  };
  PatternNode node;
  std::vector<Ahead> ahead;
  bool readers_differ = false;  // beyond ASCII: other readers may find more
};

// Supported: characters, classes, . \d \w \s \D \W \S, escapes, groups, | * + ? {n,m} (lazy ones too), ^ and $, and
// (?=...) and (?!...) after a ^ at its beginning. Where readers differ (\w and \d beyond ASCII), sets hold only what
// both match. Throws Error(kUnsupported or kInput) that names anything else.
StringPattern parse_pattern(std::string_view pattern);

// The expression of exactly this text.
PatternNode literal_pattern(std::string_view text);

}  // namespace vlcache
