// Recursion, ambiguity, and taking bytes back.
#include "grammar/matcher.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "grammar/grammar_testing.h"

namespace vlcache {
namespace {

// r = "(" r? ")" | r r
struct Brackets {
  Automaton a;
  int32_t rule = a.add_rule();
  Brackets() {
    const int32_t end = a.add_state(), open = a.text(a.start(rule), "("), inside = a.add_state(), next = a.add_state();
    a.end(end);
    a.call(open, rule, inside);
    a.skip(open, inside);
    a.text(inside, ")", end);
    a.call(a.start(rule), rule, next);  // left recursion
    a.call(next, rule, end);
  }
};

TEST(Matcher, RecursionOfEveryKind) {
  const Brackets b;
  for (const char* text : {"()", "(())", "()()", "()()()", "((()())())()"})
    EXPECT_TRUE(takes(b.a, b.rule, text)) << text;
  for (const char* text : {"", "(", ")", "(()", "())", "()x"}) EXPECT_FALSE(takes(b.a, b.rule, text)) << text;
}

TEST(Matcher, PushedBytesAreUndone) {
  const Brackets b;
  Matcher m(b.a);
  m.begin(b.rule);
  ASSERT_TRUE(m.push('('));
  m.commit();
  ASSERT_TRUE(m.push(')'));
  EXPECT_TRUE(m.may_end());
  EXPECT_FALSE(m.push(')'));
  EXPECT_TRUE(m.may_end());  // a refused byte changes nothing
  m.pop();
  EXPECT_FALSE(m.may_end());
  ASSERT_TRUE(m.push('('));
  ASSERT_TRUE(m.push(')'));
  ASSERT_TRUE(m.push(')'));
  EXPECT_TRUE(m.may_end());
}

// x = "[" x "]" | "[" x "]" | ... | "e", which has n parses a level: following all of them takes only as many places as
// one level has.
TEST(Matcher, AmbiguityDoesNotGrowWithDepth) {
  Automaton a;
  const int32_t rule = a.add_rule(), end = a.add_state();
  a.end(end);
  a.text(a.start(rule), "e", end);
  for (int i = 0; i < 8; ++i) {
    const int32_t after = a.add_state();
    a.call(a.text(a.start(rule), "["), rule, after);
    a.text(after, "]", end);
  }
  Matcher m(a);
  m.begin(rule);
  size_t most = 0;
  const std::string text = std::string(100, '[') + "e" + std::string(100, ']');
  for (const char c : text) {
    ASSERT_TRUE(m.push(static_cast<uint8_t>(c)));
    m.commit();
    most = std::max(most, m.places().size());
  }
  EXPECT_TRUE(m.may_end());
  EXPECT_FALSE(m.may_go_on());
  EXPECT_LE(most, 20u);
}

TEST(Automaton, TrimRemovesDeadEnds) {
  Automaton a;
  const int32_t endless = a.add_rule(), rule = a.add_rule(), end = a.add_state(), after = a.add_state();
  a.end(end);
  a.call(a.text(a.start(endless), "x"), endless, end);  // no text of this rule ends
  a.text(a.start(rule), "a", end);
  a.call(a.text(a.start(rule), "b"), endless, after);
  a.end(after);
  EXPECT_TRUE(a.trim(rule));
  Matcher m(a);
  m.begin(rule);
  EXPECT_FALSE(m.push('b'));
  EXPECT_TRUE(m.push('a'));
  EXPECT_FALSE(a.trim(endless));
}

TEST(Automaton, NumberOfStatesIsLimited) {
  Automaton a;
  const std::string text(1000, 'x');
  int32_t at = a.add_state();
  EXPECT_THROW(for (int i = 0; i < 200; ++i) at = a.text(at, text), Error);
}

}  // namespace
}  // namespace vlcache
