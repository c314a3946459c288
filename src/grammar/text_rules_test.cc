// Choices, expressions and context-free grammars against texts that belong to them and texts that do not.
#include "grammar/text_rules.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "grammar/grammar_testing.h"
#include "grammar/json_rules.h"

namespace vlcache {
namespace {

struct Texts {
  Automaton a;
  int32_t rule = 0;

  template <typename Add>
  explicit Texts(const Add& add) {
    add_json_rules(a);
    const TextRule texts = add(a);
    rule = a.add_rule();
    const int32_t end = a.add_state();
    a.end(end);
    texts.connect(a, a.start(rule), end);
  }
  void expect(const std::vector<std::string>& good, const std::vector<std::string>& bad) const {
    for (const std::string& text : good) EXPECT_TRUE(takes(a, rule, text)) << '"' << text << '"';
    for (const std::string& text : bad) EXPECT_FALSE(takes(a, rule, text)) << '"' << text << '"';
    for (uint8_t seed = 0; seed < 4; ++seed) {
      const uint8_t choices[] = {seed, 'a', 200, '}', '1', 0, ' ', static_cast<uint8_t>(90 * seed)};
      EXPECT_TRUE(never_stuck(a, rule, choices));
    }
  }
};

Texts of_regex(const std::string& regex) {
  return Texts([&](Automaton& a) { return add_regex(a, regex, "guided_regex"); });
}
Texts of_gbnf(const std::string& grammar) {
  return Texts([&](Automaton& a) { return add_gbnf(a, grammar, "grammar"); });
}

TEST(TextRules, Choices) {
  Texts([](Automaton& a) {
    return add_choice(a, {"yes", "no", "yes, all", "ö \"x\"\n", "no"});
  }).expect({"yes", "no", "yes, all", "ö \"x\"\n"}, {"", "y", "yes,", "noo", "yes, all ", "\"yes\""});
  Texts([](Automaton& a) { return add_choice(a, {"a", ""}); }).expect({"", "a"}, {"aa"});
  Texts([](Automaton& a) { return add_choice(a, {""}); }).expect({""}, {"a"});
}

TEST(TextRules, ExpressionsMatchTheWholeText) {
  of_regex("ab|c").expect({"ab", "c"}, {"", "a", "abc", "xab", "abx"});
  of_regex("^ab|c$").expect({"ab", "c"}, {"abx", "xc"});
  of_regex("a*").expect({"", "a", "aaa"}, {"b", "ab"});
  of_regex("(a|b)*a").expect({"a", "ba", "aba"}, {"", "b", "ab"});
  of_regex("\\d{2,3}-[^\"]\n.").expect({"12-\\\n\"", "123-ü\n😀"}, {"1-a\nb", "12-\"\nb", "12-a\n\n"});
  of_regex("^(?!no)[a-z]+$").expect({"yes", "n"}, {"no", "none", ""});
  of_regex("").expect({""}, {"a"});
  of_regex("(0|[1-9][0-9]*)(\\.[0-9]+)?").expect({"0", "10.25"}, {"01", "1.", ".5", ""});
  for (const auto& [regex, says] : {std::pair{"(a", "expected )"}, {"a^b", "no text matches"}, {"\\1", "\\1 is not"}}) {
    try {
      of_regex(regex);
      ADD_FAILURE() << regex;
    } catch (const Error& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with("guided_regex: ")) << e.what();
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
    }
  }
}

TEST(TextRules, Grammars) {
  of_gbnf("root ::= \"yes\" | \"no\" # that is all").expect({"yes", "no"}, {"", "y", "yesno", "yes "});
  // Rules without a text of their own, everywhere.
  of_gbnf("root ::= ws (item ws)* \nws ::= [ \\t]*\nitem ::= \"a\" | \"\"")
      .expect({"", " ", "a", "aa", " a a\t"}, {"b", "a,"});
  of_gbnf("root ::= opt opt\nopt ::= \"a\"? \"b\"?").expect({"", "a", "ab", "ba", "abab", "bb"}, {"aaa", "bab b"});
  // Recursion: in the middle, on the right, on the left, and through an empty beginning.
  of_gbnf("root ::= \"(\" root \")\" | \"\"").expect({"", "()", "((()))"}, {"(", "())", "()()"});
  of_gbnf("root ::= \"a\" root | \"a\"").expect({"a", "aaaa"}, {"", "b"});
  of_gbnf("root ::= root \"+\" num | num\nnum ::= [0-9]+").expect({"1", "1+23", "1+2+3"}, {"", "+1", "1+", "1++2"});
  of_gbnf("root ::= ws root \"+\" \"1\" | \"1\"\nws ::= \" \"*").expect({"1", "1+1", "  1+1+1"}, {"", "+1", "1 +1"});
  of_gbnf("root ::= root | \"x\"").expect({"x"}, {"", "xx"});
  of_gbnf("root ::= root root | \"a\" | \"\"").expect({"", "a", "aaaaaaaa"}, {"ab"});
  of_gbnf("root ::= a | \"x\"\na ::= \"y\" a").expect({"x"}, {"", "y", "yx"});
  // Repetitions, classes, escapes, lines.
  of_gbnf("root ::= [a-c]{2} \"-\" [^0-9\\n]{0,2} .{1,} (\"x\" |\n \"y\")?\n")
      .expect({"ab-\xc3\xbc", "cc-!!!x", "ab-\n", "ab-yyy"}, {"ab-", "a-x", "abc-x"});
  of_gbnf("root ::= \"\\x41\\u00e9\\U0001F600\\\"\\\\\" [\\]\\-a] [a-]")
      .expect({"Aé😀\"\\]a", "Aé😀\"\\--"}, {"Aé😀\"\\xa", "A"});
  of_gbnf(
      "root ::= object\nvalue ::= object | \"1\"\nobject ::=\n  \"{\" ws (\n    string \":\" ws value\n    (\",\" ws "
      "string \":\" ws "
      "value)*\n  )? \"}\" ws\nstring ::= \"\\\"\" [a-z]* \"\\\"\" ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}")
      .expect({"{}", "{\"a\": {\"b\":1},\n \"\":1} "}, {"{", "{\"a\"}", "{,}"});
}

TEST(TextRules, WhatIsNoGrammarIsAnError) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "a rule named root"},
      {"start ::= \"a\"", "a rule named root"},
      {"root ::= a", "line 1: the rule \"a\" is not defined"},
      {"root ::= \"a\"\n\nroot ::= \"b\"", "line 3: the rule \"root\" is there twice"},
      {"root ::= root \"a\"", "no text can end"},
      {"root ::= \"a", "the end of a literal"},
      {"root ::= [a", "the end of a literal or class"},
      {"root ::= [b-a]", "a range"},
      {"root ::= (\"a\"", "expected )"},
      {"root ::= \"a\")", "the name of a rule"},
      {"root ::= *", "expected a literal"},
      {"root ::= \"a\"{2,1}", "n <= m"},
      {"root ::= \"a\"{99999}", "at most 10000"},
      {"root ::= \"a\"******", "in a row"},
      {"root ::= (((\"a\"{1000}){1000}){1000}){1000}", "grammar: "},
      {"root ::= \"\\q\"", "escape"},
      {"root ::= \"\\ud800\"", "a Unicode character"},
      {"root ::= <think>", "tokens"},
      {"root: \"a\"", "expected ::="},
      {"root ::= \"\xff\"", "UTF-8"},
      {"root ::= " + std::string(100, '(') + "\"a\"" + std::string(100, ')'), "too many groups"},
  };
  for (const auto& [grammar, says] : cases) {
    try {
      of_gbnf(grammar);
      ADD_FAILURE() << grammar;
    } catch (const Error& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with("grammar: ")) << e.what();
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << grammar.substr(0, 60) << ": " << e.what();
    }
  }
}

// Ever more parses of a text are an error, and no endless work.
TEST(TextRules, AmbiguityIsBounded) {
  const Texts texts = of_gbnf("root ::= root root root | root root | \"a\"");
  Matcher matcher(texts.a, /*max_work=*/200'000);
  matcher.begin(texts.rule);
  EXPECT_THROW(for (int i = 0; i < 5000; ++i) matcher.push('a'), Error);
}

}  // namespace
}  // namespace vlcache
