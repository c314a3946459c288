// Schemas against texts that they allow and texts that they forbid.
#include "grammar/schema_rules.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar_testing.h"
#include "grammar/json_rules.h"
#include "grammar/number_range.h"

namespace vlcache {
namespace {

struct CompiledSchema {
  Automaton automaton;
  int32_t rule = 0;
};

CompiledSchema compile(std::string_view schema) {
  CompiledSchema c;
  add_json_rules(c.automaton);
  c.rule = add_schema(c.automaton, parse_ordered_json(schema, "schema"), "schema");
  return c;
}

struct Case {
  const char* schema;
  std::vector<std::string> allowed, forbidden;
};

TEST(SchemaRules, Texts) {
  const std::vector<Case> cases = {
      {R"({"type": "string"})",
       {R"("")", R"("a b")", R"("ü€😀")", R"("\n\"\\\/\u00e4\uD83D\uDE00")", "\"\x7f\""},
       {"", "a", R"(")", R"("a"b)", "\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", "\"\xc0\x80\"",
        "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe4\xb8\"", " \"a\""}},
      {R"({"type": "number"})",
       {"0", "-0", "12", "1.5", "-0.25", "1e5", "1E-05", "123456789012345", "0.123456789012345"},
       {"", "-", "01", "1.", ".5", "1e", "1e+", "+1", "1234567890123456", "1e400", "NaN"}},
      {R"({"type": "integer"})", {"0", "-7", "100"}, {"1.0", "1e2", "00", "--1"}},
      {R"({"type": ["integer", "null"]})", {"3", "null"}, {"true", "nul", "3null"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"True", "0", "null"}},
      {R"({})", {"{}", "[1, {\"a\": []}]", "\"x\"", "null", "-1.5"}, {"", "[1,]", "{,}", "[1  ,2]"}},
      {R"({"type": "object"})",
       {"{}", R"({"a":1})", R"({"a": 1, "b":{"c": [true]}})"},
       {"[]", R"({"a"})", R"({a: 1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"],
           "additionalProperties": false})",
       {R"({"a": 1, "b": "x"})", R"({"a":1,"b":""})"},
       {"{}", R"({"a": 1})", R"({"b": "x", "a": 1})", R"({"a": 1, "b": "x", "c": 2})", R"({"a":  1,"b":""})",
        R"({"a": "1", "b": "x"})"}},
      {R"({"type": "object", "properties": {"a": {}, "ab": {"type": "null"}, "c": {"type": "null"}}, "required": ["ab"]})",
       {R"({"ab": null})", R"({"a": 0, "ab": null})", R"({"a": 0, "ab": null, "c": null})", R"({"ab":null,"c":null})"},
       {"{}", R"({"a": 0})", R"({"a": 0, "c": null})", R"({"ab": null, "a": 0})", R"({, "ab": null})",
        R"({"ab": null,})"}},
      {R"({"properties": {"a b": {"const": 1}, "\"\n": {"const": 2}}, "additionalProperties": {"type": "boolean"}})",
       {"{}", R"({"a b": 1})", R"({"\"\n": 2, "x": true})", R"({"a": true, "": false, "a b ": true, "ü": true})",
        R"({"b\n": true})"},
       {R"({"a b": true})", R"({"a\u0020b": true})", R"({"x": 1})", R"({"\"\n": true})", R"({"x": true, "a b": 1})"}},
      {R"({"type": "object", "properties": {}, "additionalProperties": false})", {"{}"}, {R"({"a": 1})"}},
      {R"({"type": "object", "properties": {}})", {"{}"}, {R"({"a": 1})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"a": 1, "b": 2})"},
       {R"({"a": ""})"}},
      {R"({"type": "array", "items": {"type": "integer"}})",
       {"[]", "[1]", "[1,2, 3]"},
       {"[", "[,]", "[1,]", "[1 2]", "[[]]"}},
      {R"({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3})",
       {"[null,null]", "[null,null,null]"},
       {"[]", "[null]", "[null,null,null,null]"}},
      {R"({"type": "array", "minItems": 1})", {"[1]", "[[], {}]"}, {"[]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"enum": ["a", "ab", 1, 12, null, {"x": [1]}]})",
       {R"("a")", R"("ab")", "1", "12", "null", R"({"x":[1]})"},
       {R"("abc")", "2", R"("")", "{}"}},
      {R"({"enum": ["a", 1], "type": "string"})", {R"("a")"}, {"1"}},
      {R"({"const": "ü\n"})", {R"("ü\n")"}, {R"("u\n")", "\"ü\n\""}},
      {R"({"anyOf": [{"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
                     {"type": "object", "properties": {"k": {"const": 2}, "l": {}}, "required": ["k", "l"]}]})",
       {R"({"k": 1})", R"({"k": 2, "l": 5})"},
       {R"({"k": 2})", R"({"k": 1, "l": 5})"}},
      {R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
           "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}},
           "$ref": "#/$defs/node"})",
       {R"({"v": 1, "next": null})", R"({"v": 1, "next": {"v": 2, "next": {"v": 3, "next": null}}})"},
       {R"({"v": 1})", R"({"v": 1, "next": {}})", R"({"v": 1, "next": {"v": 2, "next": null})"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})",
       {"1", "[[1], 2, []]"},
       {"[null]"}},
      {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 305})",
       {"-12", "-9", "-1", "0", "7", "99", "100", "304"},
       {"-13", "-20", "305", "310", "1000", "-0", "007"}},
      {R"({"type": "number", "minimum": -0.5, "exclusiveMaximum": 10})",
       {"-0.5", "0", "9.999"},
       {"-0.51", "10", "10.0", "1e0"}},
      {R"({"type": ["string", "null"], "pattern": "^[a-c]+$"})", {R"("abc")", "null"}, {R"("")", R"("abd")"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-29")"}, {R"("2023-02-29")", R"("x")"}},
      {R"({"type": "integer", "minimum": 0.5, "title": "t", "description": "d", "default": 3})",
       {"1", "123456789"},
       {"0", "-1"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.schema);
    const CompiledSchema compiled = compile(c.schema);
    for (const std::string& text : c.allowed) EXPECT_TRUE(takes(compiled.automaton, compiled.rule, text)) << text;
    for (const std::string& text : c.forbidden) EXPECT_FALSE(takes(compiled.automaton, compiled.rule, text)) << text;
  }
}

TEST(SchemaRules, ErrorsNameTheKeywordAndItsPath) {
  std::string many = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 200; ++i) many += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\": {}";
  many += "}}";
  const std::pair<std::string, std::string> cases[] = {
      {R"({"type": "string", "minLength": 3})", "at #: \"minLength\" is not supported"},
      {R"({"properties": {"a/b": {"type": "number", "multipleOf": 3}}})", "at #/properties/a~1b: \"multipleOf\""},
      {R"({"type": "string", "pattern": "(?=b)a"})", "at #/pattern: the pattern at character 2: groups of this kind"},
      {R"({"type": "string", "pattern": 1})", "at #/pattern: expected a string"},
      {R"({"type": "string", "format": "regex"})", "at #/format: \"regex\" is not supported (supported: date-time"},
      {R"({"type": "string", "format": "uuid", "pattern": "x"})", "pattern and format"},
      {R"({"type": "array", "items": {"oneOf": []}})", "at #/items: \"oneOf\""},
      {R"({"type": "object", "required": ["x"]})", "at #/required: \"x\" is not among the properties"},
      {R"({"type": "text"})", "at #/type: expected string"},
      {R"({"type": []})", "at least one type"},
      {R"({"enum": []})", "at #/enum"},
      {R"({"enum": [1], "type": "string"})", "is of its type"},
      {R"({"anyOf": []})", "at #/anyOf"},
      {R"({"anyOf": [{"type": "null"}], "type": "object"})", "\"type\" is not supported here (supported: anyOf)"},
      {R"({"$ref": "http://x/y"})", "at #/$ref: expected a place within the schema"},
      {R"({"$ref": "#/$defs/no"})", "has no #/$defs/no"},
      {R"({"properties": {"a": 1}})", "at #/properties/a: expected a schema"},
      {R"({"properties": {"a": false}})", "allows nothing"},
      {R"({"type": "number", "minimum": 1, "exclusiveMaximum": 1})", "no number lies between"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no integer lies between"},
      {R"({"type": "integer", "maximum": 1e30})", "at #/maximum"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "minItems is more than"},
      {R"({"type": "array", "minItems": -1})", "at #/minItems"},
      {R"({"type": "array", "minItems": 1000000000, "items": {}})", "too large"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "would contain itself"},
      {R"({"$ref": "#"})", "would contain itself"},
      {many, "more than 128 properties in a row"},
      {R"({"type": "string", "x": ")" + std::string(1 << 20, 'x') + "\"}", "bytes, expected at most"},
  };
  for (const auto& [schema, says] : cases) {
    SCOPED_TRACE(schema.substr(0, 200));
    try {
      compile(schema);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
      EXPECT_TRUE(std::string(e.what()).starts_with("schema: ") || says == "too large") << e.what();
    }
  }
}

// Recursive references and long chains of them cost in proportion to the schema's length, no more.
TEST(SchemaRules, ChainsAndWebsOfReferences) {
  std::string chain = R"({"$ref": "#/$defs/d0", "$defs": {)", web = chain;
  for (int i = 0; i < 5000; ++i) {
    const std::string next = R"({"$ref": "#/$defs/d)" + std::to_string(i + 1) + "\"}";
    const std::string name = (i > 0 ? ",\"d" : "\"d") + std::to_string(i) + "\": ";
    chain += name + next;
    if (i < 60) web += name + R"({"type": "array", "minItems": 2, "maxItems": 2, "items": )" + next + "}";
  }
  chain += R"(,"d5000": {"type": "null"}}})";
  web += R"(,"d60": {"type": "null"}}})";
  const CompiledSchema long_one = compile(chain);
  EXPECT_TRUE(takes(long_one.automaton, long_one.rule, "null"));
  EXPECT_LT(compile(web).automaton.n_states(), 2000);  // 2^60 values
}

NumberRange range_of(const std::string& low, const std::string& high, bool inclusive) {
  NumberRange range;
  range.at_least(*Decimal::parse(low), inclusive);
  range.at_most(*Decimal::parse(high), inclusive);
  return range;
}

TEST(NumberRange, AgainstCounting) {
  const std::pair<const char*, const char*> bounds[] = {
      {"0", "0"},    {"-1", "1"},     {"5", "5"},      {"-100", "-9"},  {"9", "111"},    {"-30", "205"},
      {"1", "1000"}, {"0.5", "0.75"}, {"-2.25", "-1"}, {"-0.5", "1.5"}, {"99.9", "101"}, {"3", "4"}};
  for (const auto& [low, high] : bounds) {
    for (const bool inclusive : {true, false}) {
      SCOPED_TRACE(std::string(low) + " to " + high + (inclusive ? "" : " exclusive"));
      const NumberRange range = range_of(low, high, inclusive);
      Automaton a;
      const int32_t integers = a.add_rule(), numbers = a.add_rule(), end = a.add_state();
      a.end(end);
      integers_within(a, range, a.start(integers), end);
      numbers_within(a, range, a.start(numbers), end);
      const double least = std::stod(low), most = std::stod(high);
      const auto within = [&](double x) { return inclusive ? least <= x && x <= most : least < x && x < most; };
      for (int x = -1200; x <= 1200; ++x) {
        EXPECT_EQ(takes(a, integers, std::to_string(x)), within(x)) << x;
        EXPECT_EQ(takes(a, numbers, std::to_string(x)), within(x)) << x;
      }
      for (int x = -3000; x <= 12000; ++x) {  // quarters, written with two digits
        const int cents = std::abs(x % 4) * 25;
        const std::string text = (x < 0 ? "-" : "") + std::to_string(std::abs(x / 4)) + "." + (cents == 0 ? "0" : "") +
                                 std::to_string(cents);
        EXPECT_EQ(takes(a, numbers, text), within(x / 4.0)) << text;
        EXPECT_FALSE(takes(a, integers, text)) << text;
      }
      for (const char* text : {"-0", "00", "01", ".5", "1."}) EXPECT_FALSE(takes(a, integers, text)) << text;
      for (const char* text : {"00", "01", ".5", "1.", "1e1"}) EXPECT_FALSE(takes(a, numbers, text)) << text;
    }
  }
}

TEST(NumberRange, WidestRangesHaveFewStates) {
  NumberRange range;
  range.at_most(*Decimal::parse("999999999999999.999999999999999"), false);
  Automaton a;
  const int32_t rule = a.add_rule(), end = a.add_state();
  a.end(end);
  EXPECT_TRUE(numbers_within(a, range, a.start(rule), end));
  EXPECT_LT(a.n_states(), 2000);
  EXPECT_TRUE(takes(a, rule, "-999999999999999.999999999999999"));
  EXPECT_TRUE(takes(a, rule, "999999999999999.999999999999998"));
  EXPECT_FALSE(takes(a, rule, "999999999999999.999999999999999"));
  EXPECT_FALSE(Decimal::parse("1000000000000000"));
  EXPECT_FALSE(Decimal::parse("1e5"));
}

}  // namespace
}  // namespace vlcache
