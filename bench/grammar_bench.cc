// What holding an answer to a JSON schema costs a token: the mask of a vocabulary, and taking the token in.
//   grammar_bench MODEL_DIR
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

constexpr const char* kSchemas[][2] = {
    {"any object", R"({"type": "object"})"},
    {"strings", R"({"type": "array", "items": {"type": "string"}})"},
    {"a page", R"({"type": "object", "properties": {"title": {"type": "string"}, "date": {"type": ["string", "null"]},
        "total": {"type": "number"}, "lines": {"type": "array", "items": {"type": "object", "properties":
        {"item": {"type": "string"}, "count": {"type": "integer", "minimum": 1, "maximum": 999}, "kind": {"enum":
        ["goods", "service", "tax"]}}, "required": ["item", "count", "kind"], "additionalProperties": false}}},
        "required": ["title", "date", "total", "lines"], "additionalProperties": false})"},
    {"a list", R"({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf":
        [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/n"})"},
};

// Random tokens under the schema, until so many are timed.
void measure(Grammars& grammars, int64_t vocab, const char* name, const char* schema) {
  const auto begin = Clock::now();
  const GrammarPtr grammar = grammars.json_schema(parse_ordered_json(schema, name), name);
  const double compile_ms = ms_since(begin);
  std::mt19937 random(1);
  std::vector<double> us;
  std::vector<float> logits(static_cast<size_t>(vocab));
  uint64_t hash = 0;
  while (us.size() < 5000) {
    const auto constraint = grammars.constrain(grammar);
    for (int i = 0; i < 200 && !constraint->complete(); ++i) {
      for (float& x : logits) x = static_cast<float>(random());
      const int32_t ends[] = {0};
      const auto step = Clock::now();
      if (!constraint->mask(logits, ends)) return;
      double took = ms_since(step);
      const auto token = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
      if (token == 0) break;
      const auto advance = Clock::now();
      constraint->take(token);
      us.push_back(1000 * (took + ms_since(advance)));
      hash = hash * 31 + static_cast<uint64_t>(token);
    }
  }
  double sum = 0;
  for (const double x : us) sum += x;
  const double mean = sum / static_cast<double>(us.size()), first = us[0];
  std::ranges::sort(us);
  std::printf(
      "%-12s compiled in %7.2f ms; a token: mean %7.1f us, p50 %7.1f, p99 %7.1f, most %8.1f, first %8.1f; %016lx\n",
      name, compile_ms, mean, us[us.size() / 2], us[us.size() * 99 / 100], us.back(), first, hash);
}

}  // namespace
}  // namespace vlcache

int main(int argc, char** argv) {
  using namespace vlcache;
  if (argc != 2) return 1;
  const Tokenizer tokenizer = Tokenizer::load(argv[1]);
  Grammars grammars(tokenizer, tokenizer.vocab_size());
  std::printf("%ld tokens\n", tokenizer.vocab_size());
  for (const auto& [name, schema] : kSchemas) measure(grammars, tokenizer.vocab_size(), name, schema);
}
