// ModulePatterns: names of modules as the configurations of quantised checkpoints list them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace vlcache {

class ModulePatterns {
 public:
  enum class Style : uint8_t {
    kCompressedTensors,  // a name, or "re:" and an expression that matches from the name's beginning
    kTransformers,       // an expression that matches from the beginning up to the end of a part, or the name's end
  };
  ModulePatterns() = default;
  // `list`: null, or an array of strings; `key` names it in errors. Throws Error(kInput) for anything else and for
  // expressions that do not compile (kTransformers: they then count as names).
  ModulePatterns(const JsonObject& object, std::string_view key, Style style);

  // Throws Error(kInput) when an expression takes too many steps.
  bool matches(std::string_view module) const;
  bool empty() const { return patterns_.empty(); }

 private:
  struct Expression;  // compiled
  struct Pattern {
    std::string text;
    std::shared_ptr<const Expression> expression;  // shared: compiled once, patterns are copied
  };
  std::vector<Pattern> patterns_;
  Style style_ = Style::kCompressedTensors;
  std::string where_;
};

}  // namespace vlcache
