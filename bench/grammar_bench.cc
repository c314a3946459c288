// What holding an answer to a JSON schema costs a token: the mask of a vocabulary, and taking the token in.
//   grammar_bench MODEL_DIR
// With --schemas (studies/schema_bench.py): for each line of standard input, {"schema", "texts", "samples": n}, or
// {"grammar", ...} with a GBNF, a line
// with the time to compile, how far each of the texts belongs to the grammar (-1: wholly), and texts drawn from it with
// random tokens.
//   grammar_bench MODEL_DIR --schemas < LINES
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/text_rules.h"
#include "io/checkpoint/checkpoint.h"
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

// -1: the text belongs to the grammar; else how many of its bytes may begin a text that does.
int64_t fits(const Grammars& grammars, const GrammarPtr& grammar, const Tokenizer& tokenizer, const std::string& text) {
  const auto constraint = grammars.constrain(grammar);
  std::vector<float> logits(static_cast<size_t>(tokenizer.vocab_size()));
  int64_t n = 0;
  for (const int32_t token : tokenizer.encode(text, /*add_special_tokens=*/false)) {
    if (constraint->complete()) return n;
    std::ranges::fill(logits, 0.0f);
    if (!constraint->mask(logits, {}) || std::isinf(logits[static_cast<size_t>(token)])) return n;
    constraint->take(token);
    n += std::ssize(tokenizer.token_bytes(token));
  }
  const int32_t ends[] = {0};
  std::ranges::fill(logits, 0.0f);
  return constraint->complete() || (constraint->mask(logits, ends) && !std::isinf(logits[0])) ? -1 : n;
}

// Empty: not finished within a number of tokens. Texts that may end, end.
std::string sample(const Grammars& grammars, const GrammarPtr& grammar, const Tokenizer& tokenizer,
                   std::mt19937& random) {
  const auto constraint = grammars.constrain(grammar);
  std::vector<float> logits(static_cast<size_t>(tokenizer.vocab_size()));
  std::string text;
  std::vector<int32_t> allowed;
  for (int i = 0; i < 600; ++i) {
    if (constraint->complete()) return text;
    std::ranges::fill(logits, 0.0f);
    const int32_t ends[] = {0};
    if (!constraint->mask(logits, ends)) return "dead end after " + text;
    allowed.clear();
    for (int32_t t = 0; t < std::ssize(logits); ++t) {
      if (!std::isinf(logits[static_cast<size_t>(t)])) allowed.push_back(t);
    }
    if (!std::isinf(logits[0]) && random() % 2 == 0) return text;
    int32_t token = allowed[random() % allowed.size()];
    // Strings and lists come to an end.
    for (const char* close : {"\"", "}", "]"}) {
      const int32_t id = tokenizer.token_id(close);
      if (id >= 0 && !std::isinf(logits[static_cast<size_t>(id)]) && random() % 4 == 0) token = id;
    }
    if (token == 0) return text;
    constraint->take(token);
    text += tokenizer.token_bytes(token);
  }
  return "";
}

int check_schemas(const Tokenizer& tokenizer) {
  std::string line;
  for (uint32_t seed = 1; std::getline(std::cin, line); ++seed) {
    const nlohmann::ordered_json asked = parse_ordered_json(line, "line");
    nlohmann::ordered_json said = nlohmann::ordered_json::object();
    Grammars grammars(tokenizer, tokenizer.vocab_size());
    grammars.json_object();  // the first grammar of a vocabulary reads its tokens
    const auto begin = Clock::now();
    try {
      const GrammarPtr grammar =
          asked.contains("grammar")
              ? grammars.compile(
                    "", [&](Automaton& a) { return add_gbnf(a, asked["grammar"].get<std::string>(), "grammar").rule; })
              : grammars.json_schema(asked["schema"], "schema");
      said["ms"] = ms_since(begin);
      std::mt19937 random(seed);
      said["texts"] = nlohmann::ordered_json::array();
      for (const auto& text : asked["texts"]) said["texts"].push_back(fits(grammars, grammar, tokenizer, text));
      said["samples"] = nlohmann::ordered_json::array();
      for (int i = 0; i < asked["samples"]; ++i)
        said["samples"].push_back(sample(grammars, grammar, tokenizer, random));
    } catch (const Error& e) {
      said["ms"] = ms_since(begin);
      said["error"] = e.what();
    }
    std::printf("%s\n", said.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace vlcache

int main(int argc, char** argv) {
  using namespace vlcache;
  if (argc < 2) return 1;
  const Tokenizer tokenizer = Tokenizer::load(Checkpoint(argv[1]));
  if (argc == 3 && std::string_view(argv[2]) == "--schemas") return check_schemas(tokenizer);
  Grammars grammars(tokenizer, tokenizer.vocab_size());
  std::printf("%ld tokens\n", tokenizer.vocab_size());
  for (const auto& [name, schema] : kSchemas) measure(grammars, tokenizer.vocab_size(), name, schema);
}
