#include "io/quantised/module_patterns.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace vlcache {
namespace {

// Steps of a search, which for the patterns that people write takes fewer than 1000.
constexpr uint32_t kMatchLimit = 100'000;

}  // namespace

struct ModulePatterns::Expression {
  explicit Expression(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_ANCHORED, &error, &offset,
                         nullptr);
  }
  ~Expression() { pcre2_code_free(code); }
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

  // 1: it matches; 0: it does not; negative: it gave up.
  int match(std::string_view text) const {
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                              pcre2_match_data_free);
    const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
        pcre2_match_context_create(nullptr), pcre2_match_context_free);
    if (data == nullptr || context == nullptr) throw Error(ErrorCode::kMemory, "no memory for a regular expression");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    const int found =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(), context.get());
    return found >= 0 ? 1 : found == PCRE2_ERROR_NOMATCH ? 0 : found;
  }

  pcre2_code* code = nullptr;
};

ModulePatterns::ModulePatterns(const JsonObject& object, std::string_view key, Style style)
    : style_(style), where_(object.where() + ": " + std::string(key)) {
  const Json* list = object.find(key);
  if (list == nullptr) return;
  if (!list->is_array()) object.fail(key, "an array of names");
  for (const Json& entry : *list) {
    if (!entry.is_string()) object.fail(key, "an array of names");
    Pattern& pattern = patterns_.emplace_back(Pattern{.text = entry.get<std::string>(), .expression = nullptr});
    const bool is_expression = style == Style::kTransformers || pattern.text.starts_with("re:");
    if (!is_expression) continue;
    auto expression = std::make_shared<const Expression>(
        style == Style::kTransformers ? "(?:" + pattern.text + ")(?:(?<=\\.)|(?=\\.|$))" : pattern.text.substr(3));
    if (expression->code != nullptr) {
      pattern.expression = std::move(expression);
    } else if (style == Style::kCompressedTensors) {
      throw Error(ErrorCode::kInput,
                  where_ + ": expected \"re:\" and a regular expression, found " + shown_json(entry));
    }
  }
}

bool ModulePatterns::matches(std::string_view module) const {
  return std::ranges::any_of(patterns_, [&](const Pattern& pattern) {
    if (style_ == Style::kTransformers && module.ends_with(pattern.text)) return true;
    if (pattern.expression == nullptr) return module == pattern.text;
    const int found = pattern.expression->match(module);
    if (found >= 0) return found == 1;
    throw Error(ErrorCode::kInput,
                where_ + ": the expression " + shown_json(Json(pattern.text)) + " takes too many steps");
  });
}

}  // namespace vlcache
