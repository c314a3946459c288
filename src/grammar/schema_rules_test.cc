// Schemas against texts that they allow and texts that they forbid.
#include "grammar/schema_rules.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

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

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.schema);
    try {
      const CompiledSchema compiled = compile(c.schema);
      for (const std::string& text : c.allowed) EXPECT_TRUE(takes(compiled.automaton, compiled.rule, text)) << text;
      for (const std::string& text : c.forbidden) EXPECT_FALSE(takes(compiled.automaton, compiled.rule, text)) << text;
    } catch (const Error& e) {
      EXPECT_TRUE(c.allowed.empty()) << e.what();
    }
  }
}

TEST(SchemaRules, Texts) {
  const std::vector<Case> cases = {
      {R"({"type": "string"})",
       {R"("")", R"("a b")", R"("ü€😀")", R"("\n\"\\\/\u00e4\uD83D\uDE00")", "\"\x7f\""},
       {"", "a", R"(")", R"("a"b)", "\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", "\"\xc0\x80\"",
        "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe4\xb8\"", " \"a\""}},
      {R"({"type": "number"})",
       {"0", "-0", "12", "1.5", "-0.25", "1e5", "1E-05", "123456789012345678", "0.12345678901234567", "1.7e+300",
        "5e-300", "-2.5E200"},
       {"", "-", "01", "1.", ".5", "1e", "1e+", "+1", "1234567890123456789", "1e400", "12e300", "NaN"}},
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
        R"({"ab": null,})", R"({"ab": null, "c": 1})"}},
      // Properties that no keyword is about, after the others.
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}})",
       {R"({"a": null, "x": 1})", R"({"x": [], "ab": 2})", R"({"\n": 0})"},
       {R"({"x": 1, "a": null})", R"({"a": 1})", R"({"b": 1})"}},
      {R"({"properties": {"a b": {"const": 1}, "\"\n": {"const": 2}}, "additionalProperties": {"type": "boolean"}})",
       {"{}", R"({"a b": 1})", R"({"\"\n": 2, "x": true})", R"({"a": true, "": false, "a b ": true, "ü": true})",
        R"({"b\n": true})"},
       {R"({"a b": true})", R"({"a\u0020b": true})", R"({"x": 1})", R"({"\"\n": true})", R"({"x": true, "a b": 1})"}},
      {R"({"type": "object", "properties": {}, "additionalProperties": false})", {"{}"}, {R"({"a": 1})"}},
      {R"({"type": "object", "properties": {}})", {"{}", R"({"a": 1})"}, {"[]"}},
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
       {R"({"k": 2})", R"({"l": 5, "k": 1})"}},
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
  check(cases);
}

// The keywords of JSON Schema 2020-12 and of earlier drafts, as pydantic, zod, TypeBox and MCP servers write them.
TEST(SchemaRules, StringsAndNumbers) {
  const std::vector<Case> cases = {
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("ü\n😀")"},
       {R"("a")", R"("abcd")", R"("")"}},
      {R"({"type": "string", "minLength": 1})", {R"("a")", R"("\ud83d\ude00")"}, {R"("")"}},
      {R"({"type": "string", "maxLength": 524288})", {R"("")", R"("abc")"}, {"1"}},
      {R"({"type": "string", "maxLength": 1})", {R"("\ud83d\ude00")", R"("\"")", R"("")"}, {R"("ab")"}},
      {R"({"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 4})",
       {R"("aa")", R"("aaaa")"},
       {R"("a")", R"("aaaaa")", R"("ab")"}},
      {R"({"type": "string", "format": "uri"})", {R"("x")"}, {"1"}},
      {R"({"type": "string", "format": "uuid", "pattern": "^x+$"})", {R"("xx")"}, {R"("y")"}},
      {R"({"type": "string", "format": "date", "minLength": 11})", {}, {R"("2024-02-29")"}},
      {R"({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991})",
       {"0", "-9007199254740991", "9007199254740991"},
       {"9007199254740992", "1.0"}},
      {R"({"type": "integer", "minimum": 9223372036854775808, "maximum": 1e20})",
       {"9223372036854775808", "100000000000000000000"},
       {"9223372036854775807", "100000000000000000001"}},
      {R"({"type": "number", "exclusiveMinimum": 0.000001})",
       {"0.0000011", "1", "1e5"},
       {"0.000001", "0", "1e-6", "-1"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})",
       {"0", "1", "0.5", "1.0", "2.5e-07"},
       {"1.1", "-0.1", "1e0", "2e-0"}},
      {R"({"type": "number", "minimum": 5, "exclusiveMinimum": true})", {"5.1"}, {"5"}},
      {R"({"type": "number", "minimum": 0})", {"1e300", "5e-300", "0"}, {"-1", "-1e5"}},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 50})",
       {"0", "7", "49"},
       {"8", "50", "56", "-7"}},
      {R"({"type": "integer", "multipleOf": 5})", {"-15", "0", "123455"}, {"12", "-1"}},
      {R"({"type": "number", "multipleOf": 0.01})", {"1", "1.25", "-3.5"}, {"0.001", "1e5"}},
      {R"({"type": "number", "multipleOf": 2.5})", {"5", "10.0", "-5"}, {"2", "5.1"}},
      {R"({"type": "string", "nullable": true})", {R"("a")", "null"}, {"1"}},
  };
  check(cases);
}

TEST(SchemaRules, Arrays) {
  const std::vector<Case> cases = {
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 2})",
       {R"([1, "a"])"},
       {"[1]", R"([1, "a", 2])", R"(["a", 1])"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}})",
       {"[]", "[1]", "[1, null, null]"},
       {"[null]", "[1, 2]"}},
      {R"({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "null"}})",
       {"[1, null]"},
       {"[1, 2]"}},
      {R"({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 100000})",
       {"[null, null,null]"},
       {"[null, null]", "[]"}},
      {R"({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 2})",
       {R"(["b", "a"])", R"(["c","a","b"])"},
       {R"(["a", "a"])", R"(["a"])", "[]"}},
      {R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true, "maxItems": 1})",
       {R"(["a"])"},
       {R"(["a", "b"])"}},
  };
  check(cases);
}

TEST(SchemaRules, Combinations) {
  const std::vector<Case> cases = {
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                     {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["b"]}]})",
       {R"({"a": 3, "b": null})"},
       {R"({"a": 2, "b": null})", R"({"a": 3})"}},
      {R"({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {}}, "required": ["t", "x"]},
                     {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"]}], "discriminator": {"propertyName": "t"}})",
       {R"({"t": "a", "x": 1})", R"({"t": "b"})"},
       {R"({"t": "a"})", R"({"t": "c"})"}},
      // Exactly one of two that overlap.
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a": 1})", R"({"b": 1, "c": 2})"},
       {R"({"a": 1, "b": 2})", "{}"}},
      {R"({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]})",
       {"-1", "10"},
       {"5", "0", "9"}},
      {R"({"anyOf": [{"type": "null"}, {"minLength": 1}], "type": ["string", "null"]})",
       {"null", R"("a")"},
       {R"("")", "1"}},
      {R"({"type": "string", "not": {"enum": ["a", "ab"]}})", {R"("b")", R"("abc")", R"("")"}, {R"("a")", R"("ab")"}},
      {R"({"type": "string", "not": {"pattern": "^x"}})", {R"("a")", R"("")"}, {R"("xa")"}},
      {R"({"type": "integer", "not": {"const": 5}, "minimum": 4, "maximum": 6})", {"4", "6"}, {"5"}},
      {R"({"not": {"type": "string"}})", {"1", "null", "[]"}, {R"("a")"}},
      {R"({"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "null"}}, "required": ["a"],
           "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "additionalProperties": false})",
       {R"({"a": 1, "b": null})", R"({"a": 2})"},
       {R"({"a": 1})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}, "additionalProperties": false})",
       {"{}", R"({"b": 1})", R"({"a": 1, "b": 2})"},
       {R"({"a": 1})"}},
  };
  check(cases);
}

TEST(SchemaRules, Objects) {
  const std::vector<Case> cases = {
      {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"ab": 1})"},
       {R"({"A": 1})", R"({"a": "1"})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"x": 1, "y": 2})"},
       {R"({"z": 1})"}},
      {R"({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "properties": {"s": {"type": "string"}},
           "additionalProperties": false})",
       {"{}", R"({"s": "a", "n_x": 1, "n_y": 2})"},
       {R"({"n_x": "a"})", R"({"t": 1})", R"({"s": 1})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2})",
       {R"({"a": 1, "c": 2})", R"({"b": 1, "x": 2})"},
       {R"({"a": 1})", R"({"a": 1, "b": 2, "c": 3})", "{}"}},
      {R"({"type": "object", "required": ["x"]})", {R"({"x": 1})", R"({"x": 1, "y": 2})"}, {"{}", R"({"y": 2})"}},
      {R"({"type": "object", "allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}, "unevaluatedProperties": false})",
       {R"({"b": 1, "a": 2})"},
       {R"({"c": 1})"}},
  };
  check(cases);
}

TEST(SchemaRules, References) {
  const std::vector<Case> cases = {
      {R"({"$defs": {"A%[b]/c": {"type": "integer"}}, "$ref": "#/$defs/A%25%5Bb%5D~1c"})", {"1"}, {R"("a")"}},
      {R"({"$defs": {"x": {"$anchor": "here", "type": "integer"}}, "$ref": "#here"})", {"1"}, {R"("a")"}},
      {R"({"$id": "https://e.x/s.json", "$defs": {"x": {"type": "integer"}}, "$ref": "https://e.x/s.json#/$defs/x"})",
       {"1"},
       {R"("a")"}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/x", "type": "string", "definitions": {"x": {"type": "integer"}}})",
       {"1"},
       {R"("a")"}},
      {R"({"type": "integer", "x-order": 3, "contentMediaType": "a/b", "externalDocs": {}, "strict": true})",
       {"1"},
       {"1.5"}},
      {R"({"type": "object", "properties": {"a": false, "b": {}}})", {"{}", R"({"b": 1})"}, {R"({"a": 1})"}},
      {R"({"enum": ["a", "bcd", 5], "minLength": 2})", {R"("bcd")", "5"}, {R"("a")"}},
      {R"({"properties": {"a": {"items": {"type": "null"}}}})",
       {R"({"a": [null]})", R"({"a": 1})"},
       {R"({"a": [1]})", "1"}},
  };
  check(cases);
}

TEST(SchemaRules, PartsOfASchemaReferToAllOfIt) {
  const nlohmann::ordered_json root = parse_ordered_json(R"({
      "properties": {"a": {"$ref": "#/$defs/x~1y"}, "b": {"$ref": "#/properties/a"},
                     "c": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}},
      "$defs": {"x/y": {"type": "integer"}}})",
                                                         "root");
  Automaton automaton;
  add_json_rules(automaton);
  std::vector<const nlohmann::ordered_json*> parts;
  for (const auto& [name, part] : root["properties"].items()) parts.push_back(&part);
  std::vector<SchemaNote> notes;
  const std::vector<int32_t> rules =
      add_schemas_within(automaton, root, parts, "root", {.widened = &notes, .closed = true});
  ASSERT_EQ(rules.size(), 3u);
  for (const int32_t rule : {rules[0], rules[1]}) {
    EXPECT_TRUE(takes(automaton, rule, "3"));
    EXPECT_FALSE(takes(automaton, rule, R"("x")"));
  }
  EXPECT_TRUE(takes(automaton, rules[2], R"(["x", "x"])"));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].place, "#/properties/c");
}

// Beyond the members that are compared one by one, names are found by an index.
TEST(SchemaRules, ManyPropertiesAndReferences) {
  std::string properties, required, definitions;
  for (int i = 0; i < 1000; ++i) {
    const std::string n = std::to_string(i), comma = i == 0 ? "" : ",";
    properties += comma + "\"p" + n + R"(":{"$ref":"#/$defs/d)" + n + "\"}";
    required += comma + "\"p" + n + "\"";
    definitions += comma + "\"d" + n + R"(":{"const":)" + n + "}";
  }
  const CompiledSchema compiled = compile(R"({"type":"object","properties":{)" + properties + R"(},"required":[)" +
                                          required + R"(],"$defs":{)" + definitions + "}}");
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) text += (i == 0 ? "\"p" : ", \"p") + std::to_string(i) + "\": " + std::to_string(i);
  EXPECT_TRUE(takes(compiled.automaton, compiled.rule, text + "}"));
  EXPECT_FALSE(takes(compiled.automaton, compiled.rule, text + "0}"));
}

TEST(SchemaRules, NumbersOfPropertiesAreBounded) {
  for (const std::string bound : {"minProperties", "maxProperties"}) {
    try {
      compile(R"({"type": "object", "additionalProperties": {"type": "string"}, ")" + bound + R"(": 2000000000})");
      FAIL();
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), ("schema: at #/" + bound + ": expected at most 100000").c_str());
    }
  }
  check({{R"({"properties": {"a": {}}, "additionalProperties": false, "minProperties": 2000000000})", {}, {}},
         {R"({"properties": {"a": {}}, "additionalProperties": false, "maxProperties": 2000000000})",
          {R"({"a": 1})", "{}"},
          {}}});
}

TEST(SchemaRules, FunctionsHaveTheirArgumentsOnly) {
  const auto compiled = [](std::string_view schema) {
    CompiledSchema c;
    add_json_rules(c.automaton);
    c.rule = add_schema(c.automaton, parse_ordered_json(schema, ""), "", {.closed = true});
    return c;
  };
  const CompiledSchema named = compiled(R"({"properties": {"a": {"properties": {"b": {}}}}})");
  EXPECT_TRUE(takes(named.automaton, named.rule, R"({"a": {"b": 1}})"));
  for (const char* text : {R"({"x": 1})", R"({"a": {"x": 1}})", R"({"a": 1})", "null"}) {
    EXPECT_FALSE(takes(named.automaton, named.rule, text)) << text;
  }
  const CompiledSchema open =
      compiled(R"({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}})");
  EXPECT_TRUE(takes(open.automaton, open.rule, R"({"a": 1, "x": null})"));
  const CompiledSchema any = compiled(R"({"type": "object"})");
  EXPECT_TRUE(takes(any.automaton, any.rule, R"({"x": 1})"));
}

TEST(SchemaRules, WhatCannotBeHeldIsLeftOutWithANote) {
  std::vector<SchemaNote> notes;
  CompiledSchema c;
  add_json_rules(c.automaton);
  c.rule = add_schema(c.automaton,
                      parse_ordered_json(R"({"properties": {"a": {"type": "array", "uniqueItems": true, "items":
      {"type": "string", "pattern": "a\\b"}}, "b": {"type": "array", "contains": {"const": 1}}}})",
                                         ""),
                      "", {.widened = &notes});
  EXPECT_TRUE(takes(c.automaton, c.rule, R"({"a": ["x", "x"], "b": [2]})"));
  EXPECT_FALSE(takes(c.automaton, c.rule, R"({"a": [1]})"));
  std::set<std::pair<std::string, std::string>> said;
  for (const SchemaNote& note : notes) said.emplace(note.keyword, note.place);
  EXPECT_EQ(said, (std::set<std::pair<std::string, std::string>>{{"uniqueItems", "#/properties/a"},
                                                                 {"pattern", "#/properties/a/items"},
                                                                 {"contains", "#/properties/b"}}));
}

TEST(SchemaRules, CompilingIsLimitedInTime) {
  Automaton automaton;
  add_json_rules(automaton);
  automaton.set_deadline(Clock::now() - std::chrono::seconds(1));
  std::string schema = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 500; ++i) schema += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\": {\"type\": \"null\"}";
  try {
    add_schema(automaton, parse_ordered_json(schema + "}}", ""), "schema");
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("takes too long to compile"), std::string::npos) << e.what();
  }
}

TEST(SchemaRules, ErrorsNameTheKeywordAndItsPath) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"properties": {"a/b": {"type": "array", "uniqueItems": true}}})",
       "at #/properties/a~1b: \"uniqueItems\": items other"},
      {R"x({"type": "string", "pattern": "a(?=b)"})x",
       "at #: \"pattern\": the pattern at character 3: groups of this kind"},
      {R"({"type": "string", "pattern": 1})", "at #/pattern: expected a string"},
      {R"({"type": "array", "items": {"oneOf": []}})", "at #/items/oneOf: expected a list of schemas"},
      {R"({"type": "array", "contains": {"type": "null"}})", "at #: \"contains\": items of which one"},
      {R"({"type": "integer", "multipleOf": 4099})", "at #: \"multipleOf\": a divisor above 2000"},
      {R"({"type": "text"})", "at #/type: expected string"},
      {R"({"type": []})", "at #/type: expected at least one type"},
      {R"({"enum": []})", "at #/enum"},
      {R"({"enum": [1], "type": "string"})", "no value that can be written"},
      {R"({"anyOf": []})", "at #/anyOf"},
      {R"({"$ref": "http://x/y"})", "at #: \"$ref\": another document"},
      {R"({"$ref": "#/$defs/no"})", "at #/$ref: the schema has no \"#/$defs/no\""},
      {R"({"properties": {"a": 1}})", "at #/properties/a: expected a schema"},
      {R"({"required": ["a"], "properties": {"a": false}})", "no value that can be written"},
      {R"({"type": "number", "minimum": 1, "exclusiveMaximum": 1})", "no value that can be written"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no value that can be written"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "no value that can be written"},
      {R"({"type": "array", "minItems": -1})", "at #/minItems"},
      {R"({"type": "array", "minItems": 1000000000, "prefixItems": [{}], "items": {}})", "too large"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no value that can be written"},
      {R"({"$ref": "#"})", "no value that can be written"},
      {R"({"type": "string", "x": ")" + std::string(1 << 20, 'x') + "\"}", "bytes, expected at most"},
  };
  for (const auto& [schema, says] : cases) {
    SCOPED_TRACE(schema.substr(0, 200));
    try {
      compile(schema);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
      EXPECT_TRUE(std::string(e.what()).starts_with("schema: ")) << e.what();
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
      for (const char* text : {"00", "01", ".5", "1.", "1e4"}) EXPECT_FALSE(takes(a, numbers, text)) << text;
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
  EXPECT_LT(a.n_states(), 6000);
  EXPECT_TRUE(takes(a, rule, "-123456789012345678.5"));
  EXPECT_TRUE(takes(a, rule, "999999999999999.999999999999998"));
  EXPECT_FALSE(takes(a, rule, "999999999999999.999999999999999"));
  EXPECT_FALSE(takes(a, rule, "1000000000000000"));
}

TEST(NumberRange, DecimalsOfAnySize) {
  const auto parsed = [](const char* text) {
    const std::optional<Decimal> d = Decimal::parse(text);
    return d ? (d->negative ? "-" : "") + d->whole + "." + d->fraction : "none";
  };
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0."},           {"-0.0", "0."},      {"12.50", "12.5"}, {"1e20", "100000000000000000000."},
      {"1e-06", "0.000001"}, {"-2.5E+1", "-25."}, {"x", "none"},     {"1e", "none"},
      {".5", "none"},        {"1e999", "none"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(parsed(text), expected) << text;
  EXPECT_LT(*Decimal::parse("-3"), *Decimal::parse("-2.9"));
  EXPECT_LT(*Decimal::parse("9.99"), *Decimal::parse("1e1"));
}

}  // namespace
}  // namespace vlcache
