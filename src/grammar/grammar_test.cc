// Masks against each token matched by itself, and texts that are sampled under masks.
#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "grammar/json_rules.h"
#include "grammar/schema_rules.h"
#include "grammar/text_rules.h"
#include "io/tokenizer/tokenizer.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

// All bytes, and pieces like a real tokenizer's: words, parts of characters, ends and beginnings of JSON
// together.
std::vector<std::pair<std::string, int32_t>> some_tokens(uint32_t seed) {
  std::vector<std::string> texts;
  for (int b = 0; b < 256; ++b) texts.emplace_back(1, static_cast<char>(b));
  std::mt19937 random(seed);
  const std::string_view pieces[] = {"\"",   "{",    "}",    "[",        "]",    ":",      ",",   " ", "a",
                                     "b",    "1",    "0",    "-",        ".",    "e",      "\\",  "u", "true",
                                     "null", "\xc3", "\xa9", "\xf0\x9f", "\": ", "\", \"", "d83d"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 5; n > 0; --n) text += pieces[random() % std::size(pieces)];
    texts.push_back(text);
  }
  texts.emplace_back();  // a special token
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (const std::string& text : texts) tokens.emplace_back(text, static_cast<int32_t>(tokens.size()));
  return tokens;
}

constexpr const char* kSchemas[] = {
    R"({"type": "object"})",
    R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}, "ab": {"type": ["integer", "null"]}},
        "required": ["b"]})",
    R"({"type": "array", "items": {"anyOf": [{"enum": ["a", "ab", "b"]}, {"type": "number"}, {"$ref": "#"}]}})",
    R"({"properties": {"a": {"const": 1}}, "additionalProperties": {"type": "array", "items": {"type": "boolean"}}})",
    R"({"type": "integer", "minimum": -10, "maximum": 120})",
    R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4}, "minItems": 2, "maxItems": 5})",
    R"({"type": "string", "minLength": 1})",
    R"({"type": "object", "patternProperties": {"^a": {"type": "boolean"}}, "properties": {"b": {"type": "null"}}})",
};

TEST(TokenTrie, HoldsEveryToken) {
  const auto tokens = some_tokens(1);
  const TokenTrie trie(tokens);
  size_t n = 0;
  for (const TokenTrie::Node& node : trie.nodes()) n += trie.tokens(node).size();
  EXPECT_EQ(n, tokens.size() - 1);
  for (const auto& [text, id] : tokens) EXPECT_EQ(trie.bytes(id), text);
}

constexpr const char* kGrammars[] = {
    "root ::= root \",\" item | item | \"\"\nitem ::= [a-b]+ | \"[\" root \"]\" | . \":\"",
    "root ::= \"1\" ws root | ws ws \"0\"{2,3}\nws ::= \" \"*",
};

// The rule of a schema, or of a grammar.
int32_t add_texts(Automaton& automaton, const std::string& source) {
  if (source.starts_with('{')) return add_schema(automaton, parse_ordered_json(source, ""), "");
  const TextRule texts = add_gbnf(automaton, source, "");
  const int32_t rule = automaton.add_rule(), end = automaton.add_state();
  automaton.end(end);
  texts.connect(automaton, automaton.start(rule), end);
  return rule;
}

TEST(TokenMasks, AgreeWithEveryTokenTestedAlone) {
  std::vector<const char*> sources(std::begin(kSchemas), std::end(kSchemas));
  sources.insert(sources.end(), std::begin(kGrammars), std::end(kGrammars));
  for (const char* schema : sources) {
    SCOPED_TRACE(schema);
    const auto tokens = some_tokens(2);
    const TokenTrie trie(tokens);
    Automaton automaton;
    add_json_rules(automaton);
    const int32_t rule = add_texts(automaton, schema);
    StateMasks shared(trie);
    TokenMasks masks(automaton, trie, shared);
    std::mt19937 random(3);
    std::vector<uint64_t> bits(static_cast<size_t>(trie.n_ids() + 63) / 64);
    for (int run = 0; run < (shortened() ? 6 : 20); ++run) {
      Matcher matcher(automaton);
      matcher.begin(rule);
      for (int step = 0; step < 30; ++step) {
        masks.allowed(matcher, bits);
        std::vector<int32_t> allowed;
        for (const auto& [text, id] : tokens) {
          size_t n = 0;
          while (n < text.size() && matcher.push(static_cast<uint8_t>(text[n]))) ++n;
          const bool fits = n == text.size() && n > 0;
          for (; n > 0; --n) matcher.pop();
          const bool said = (bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
          ASSERT_EQ(said, fits) << text << " at step " << step;
          if (fits) allowed.push_back(id);
        }
        if (allowed.empty()) break;
        for (const char c : trie.bytes(allowed[random() % allowed.size()])) {
          ASSERT_TRUE(matcher.push(static_cast<uint8_t>(c)));
        }
        matcher.commit();
      }
    }
  }
}

// Bytes as tokens, and a special token that ends a text.
Tokenizer byte_tokenizer() {
  Json vocab = Json::object(), root;
  for (int b = 0x21; b < 0x7f; ++b) vocab[std::string(1, static_cast<char>(b))] = b - 0x21;
  vocab["\u0120"] = 94;  // a space, as ByteLevel writes it
  vocab["\":"] = 95;
  vocab["</s>"] = 96;
  vocab["\u00ff"] = 97;  // the byte that marks special tokens
  root = {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 96},
             {"content", "</s>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}},
          {"decoder", {{"type", "ByteLevel"}}}};
  return Tokenizer::from_json(root.dump(), "tokenizer");
}

constexpr int32_t kEnd = 96, kVocab = 100;  // logits may be wider than the vocabulary

// Samples until the text ends; empty if it does not end within a limit.
std::string draw(TokenConstraint& constraint, const Tokenizer& tokenizer, std::mt19937& random) {
  std::string text;
  const int32_t ends[] = {kEnd};
  for (int i = 0; i < 4000; ++i) {
    if (constraint.complete()) return text;
    std::vector<float> logits(kVocab, 0.0f);
    EXPECT_TRUE(constraint.mask(logits, ends));
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < kVocab; ++t) {
      if (!std::isinf(logits[static_cast<size_t>(t)])) allowed.push_back(t);
    }
    const int32_t token = allowed[random() % allowed.size()];
    if (token == kEnd) return text;
    constraint.take(token);
    text += tokenizer.token_bytes(token);
  }
  return "";
}

TEST(Grammar, TextsUnderItAreJson) {
  const Tokenizer tokenizer = byte_tokenizer();
  Grammars grammars(tokenizer, kVocab);
  std::mt19937 random(5);
  int n_finished = 0;
  for (const char* schema : kSchemas) {
    const GrammarPtr grammar = grammars.json_schema(parse_ordered_json(schema, ""), "");
    for (int i = 0; i < 40; ++i) {
      const std::string text = draw(*grammars.constrain(grammar), tokenizer, random);
      if (text.empty()) continue;
      ++n_finished;
      EXPECT_TRUE(Json::accept(text)) << text;
    }
  }
  EXPECT_GT(n_finished, 50);
}

TEST(Grammar, EndTokenIsAllowedWhereTheTextCanEnd) {
  const Tokenizer tokenizer = byte_tokenizer();
  Grammars grammars(tokenizer, kVocab);
  const auto constraint = grammars.constrain(grammars.json_schema({{"type", "integer"}}, ""));
  const int32_t ends[] = {kEnd};
  const auto may = [&](int32_t token) {
    std::vector<float> logits(kVocab, 1.0f);
    EXPECT_TRUE(constraint->mask(logits, ends));
    EXPECT_TRUE(std::isinf(logits[kVocab - 1]));
    return !std::isinf(logits[static_cast<size_t>(token)]);
  };
  EXPECT_FALSE(may(kEnd));
  constraint->take(tokenizer.token_id("4"));
  EXPECT_TRUE(may(kEnd));
  EXPECT_TRUE(may(tokenizer.token_id("2")));
  EXPECT_FALSE(may(tokenizer.token_id(":")));
  EXPECT_FALSE(constraint->complete());
}

TEST(Grammar, OpeningTokensAreForced) {
  const Tokenizer tokenizer = byte_tokenizer();
  Grammars grammars(tokenizer, kVocab);
  const auto constraint = grammars.constrain(grammars.json_schema({{"const", nullptr}}, ""), {kEnd, 3});
  for (const int32_t token : {kEnd, 3}) {
    std::vector<float> logits(kVocab, 1.0f);
    EXPECT_TRUE(constraint->mask(logits, {}));
    EXPECT_EQ(std::ranges::count(logits, 1.0f), 1);
    EXPECT_EQ(logits[static_cast<size_t>(token)], 1.0f);
    EXPECT_FALSE(constraint->complete());
    constraint->take(token);
  }
  for (const char c : std::string_view("null")) constraint->take(tokenizer.token_id(std::string(1, c)));
  EXPECT_TRUE(constraint->complete());
}

// A special token is allowed where a rule has its mark, and its letters are not accepted for it; in JSON it is never
// allowed.
TEST(Grammar, SpecialTokenIsAllowedOnlyAtItsMark) {
  const Tokenizer tokenizer = byte_tokenizer();
  Grammars grammars(tokenizer, kVocab);
  const auto allowed = [](TokenConstraint& constraint) {
    std::vector<float> logits(kVocab, 1.0f);
    EXPECT_TRUE(constraint.mask(logits, {}));
    std::vector<int32_t> out;
    for (int32_t t = 0; t < kVocab; ++t) {
      if (logits[static_cast<size_t>(t)] == 1.0f) out.push_back(t);
    }
    return out;
  };
  const auto constraint = grammars.constrain(grammars.compile("marked", [&](Automaton& a) {
    const int32_t rule = a.add_rule();
    a.end(a.text(a.start(rule), "a" + grammars.mark("</s>") + grammars.mark("b")));
    return rule;
  }));
  for (const int32_t token : {tokenizer.token_id("a"), kEnd, tokenizer.token_id("b")}) {
    EXPECT_EQ(allowed(*constraint), std::vector{token});
    constraint->take(token);
  }
  EXPECT_TRUE(constraint->complete());
  const auto json = grammars.constrain(grammars.json_schema({{"type", "string"}}, ""));
  json->take(tokenizer.token_id("\""));
  EXPECT_EQ(std::ranges::count(allowed(*json), kEnd), 0);
  EXPECT_EQ(std::ranges::count(allowed(*json), tokenizer.token_id("<")), 1);
}

// A vocabulary that lacks a letter cannot form every text.
TEST(Grammar, MaskFailsWithoutAnAllowedToken) {
  const Tokenizer tokenizer = byte_tokenizer();
  Grammars grammars(tokenizer, kVocab);
  const auto constraint = grammars.constrain(grammars.json_schema({{"const", "\u00fc"}}, ""));
  constraint->take(tokenizer.token_id("\""));
  std::vector<float> logits(kVocab, 1.0f);
  EXPECT_FALSE(constraint->mask(logits, {}));
}

TEST(Grammars, CompiledGrammarsAreCached) {
  const Tokenizer tokenizer = byte_tokenizer();
  Grammars grammars(tokenizer, kVocab);
  const GrammarPtr first = grammars.json_schema({{"const", 0}}, "");
  EXPECT_EQ(grammars.json_schema({{"const", 0}}, ""), first);
  for (int i = 1; i <= 40; ++i) grammars.json_schema({{"const", i}}, "");
  EXPECT_NE(grammars.json_schema({{"const", 0}}, ""), first);
  EXPECT_THROW(grammars.json_schema({{"const", 0}, {"not", 1}}, ""), Error);
}

}  // namespace
}  // namespace vlcache
