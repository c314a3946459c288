// Expressions against strings in which they are found, or not, and strings that readers would disagree about.
#include "grammar/string_set.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar_testing.h"
#include "grammar/json_rules.h"
#include "grammar/string_format.h"

namespace vlcache {
namespace {

struct Compiled {
  Automaton a;
  int32_t rule = 0;

  explicit Compiled(std::string_view pattern) {
    add_json_rules(a);
    rule = a.add_rule();
    const int32_t end = a.add_state();
    a.end(end);
    StringSet set;
    set.all.push_back(parse_pattern(pattern));
    strings_of(a, set, a.start(rule), end);
  }
  bool takes(const std::string& text) const { return vlcache::takes(a, rule, Json(text).dump()); }
};

TEST(StringSet, Texts) {
  const struct {
    const char* pattern;
    std::vector<std::string> found, not_found;
  } cases[] = {
      {"^ab$", {"ab"}, {"", "a", "abc", "xab"}},
      {"ab", {"ab", "xab", "abx", "ü ab \n"}, {"", "a b"}},
      {"^a", {"a", "ab"}, {"ba"}},
      {"a$", {"a", "ba"}, {"ab"}},
      {"^a|b$|^$", {"", "ax", "xb"}, {"xa", "bx"}},
      {"^(a|bc)*$", {"", "a", "bca"}, {"b", "ac"}},
      {"^(?:a?b+)?c{2}d{1,3}e{2,}?$", {"ccdee", "abccdddeee", "bbccdee"}, {"accdee", "cdee", "ccddddee", "ccde"}},
      {"^[a-cx_-]$", {"a", "c", "x", "_", "-"}, {"d", "", "ab"}},
      {"^[\\]a]$", {"]", "a"}, {"[", ""}},
      {"^[^a-y]$", {"z", "ü", "日", "😀", "\n", "\"", "\\"}, {"a", "q", ""}},
      {"^\\d\\w\\s\\.\\/\\-$", {"1_ ./-", "0z\n./-"}, {"a_ ./-", "1- ./-"}},
      {"^.$", {"a", "\"", "\\", "\t", "ü", "😀"}, {"\n", "", "ab"}},
      {"^\\u00fc\\x41[\\u4e00-\\u9fff]$", {"üA日"}, {"üA€"}},
      {"^[\\\\\"\\n]+$", {"\\", "\"", "\n", "\\\"\n"}, {"n", ""}},
      {"^\\D\\W\\S$", {"a.b"}, {"1.b", "aab", "a. "}},
      {"^[ä-ö]$", {"ä", "ö", "å"}, {"ü", "a"}},
      {"^(a$|b)", {"a", "bx"}, {"ab", "xb"}},
      {"(^|,)a($|,)", {"a", "x,a", "a,b"}, {"ba", "ab"}},
      {"^(?=.*[A-Z])(?!.*x)[A-Za-z]{3,5}$", {"abC", "ABC"}, {"abc", "abCx", "aB", "ABCDEF"}},
      {"^(?<year>\\d{2})a{x}$", {"12a{x}"}, {"1a{x}"}},
      {"^[\\w-.]{2}[[]$", {"a-[", "..["}, {"a [", "ab"}},
      {"^.{300}$", {std::string(300, 'a')}, {std::string(299, 'a'), std::string(301, 'a')}},
      {"", {"", "anything \" at \\ all"}, {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.pattern);
    const Compiled compiled(c.pattern);
    for (const std::string& text : c.found) EXPECT_TRUE(compiled.takes(text)) << text;
    for (const std::string& text : c.not_found) EXPECT_FALSE(compiled.takes(text)) << text;
  }
}

// std::regex accepts the same language, within ASCII.
TEST(StringSet, AgreesWithAnotherReader) {
  const std::string letters = "ab1 ._";
  for (const char* pattern :
       {"a*b", "^(a|1)+[b_]?$", "^\\w{2,3}\\.$", "[^a1]b", "^.\\s?.$", "a.?b|1{2}$", "^(?:a|b)*?1"}) {
    SCOPED_TRACE(pattern);
    const Compiled compiled(pattern);
    const std::regex other(pattern);
    for (int n = 0; n < 6 * 6 * 6 * 6; ++n) {
      std::string text;
      for (int rest = n; rest > 0; rest /= 6) text += letters[static_cast<size_t>(rest % 6)];
      EXPECT_EQ(compiled.takes(text), std::regex_search(text, other)) << text;
    }
  }
}

TEST(StringSet, Formats) {
  const struct {
    const char* format;
    std::vector<std::string> good, bad;
  } cases[] = {
      {"date",
       {"2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01"},
       {"1900-02-29", "2023-02-29", "2024-13-01", "2024-04-31", "0000-01-01"}},
      {"time", {"12:30:59Z", "00:00:00.123+02:00"}, {"24:00:00Z", "12:30:00"}},
      {"date-time", {"2024-05-06T07:08:09Z", "2024-05-06T07:08:09.5-11:30"}, {"2024-05-06 07:08:09Z", "2024-05-06"}},
      {"duration", {"P1Y2M3DT4H5M6S", "P3W", "PT5M", "P1D"}, {"P", "PT", "1D", "P1S", "P1Y3D"}},
      {"email", {"a.b+c@d.example"}, {"a", "@b", "a@", "a b@c"}},
      {"hostname", {"a", "a-b.example"}, {"-a", "a-", "a..b", ""}},
      {"ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.1.1.1", "01.2.3.4", "1.2.3"}},
      {"ipv6",
       {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2::8", "1:2:3:4:5:6:7::", "fe80::1:2"},
       {":", "1:2", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::"}},
      {"uuid",
       {"123e4567-e89b-12d3-a456-426614174000"},
       {"123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.format);
    const Compiled compiled(pattern_of_format(c.format));
    for (const std::string& text : c.good) EXPECT_TRUE(compiled.takes(text)) << text;
    for (const std::string& text : c.bad) EXPECT_FALSE(compiled.takes(text)) << text;
  }
  EXPECT_EQ(pattern_of_format("color"), "");
}

TEST(StringSet, ErrorsNameTheUnsupportedSyntax) {
  const std::pair<const char*, const char*> cases[] = {
      {"(a", "expected )"},
      {"a)", "expected its end"},
      {"[a", "expected ]"},
      {"[]a]", "begins with ]"},
      {"*a", "nothing to repeat"},
      {"a{2,1}", "n <= m"},
      {"a{99999}", "at most 10000"},
      {"a**", "after another"},
      {"(?=a)", "look-around"},
      {"b(?<!a)", "look-around"},
      {"^(?=a)b|c", "look-ahead in one of several"},
      {"\\1", "\\1 is not"},
      {"\\b", "\\b is not"},
      {"\\p{L}", "\\p is not"},
      {"a\\", "at its end"},
      {"\\u12", "4 hexadecimal"},
      {"[z-a]", "a range such as"},
      {"\\ud800", "a surrogate"},
      {"((((a{1000}){1000}){1000}){1000})", "too large an automaton"},
  };
  for (const auto& [pattern, says] : cases) {
    try {
      const Compiled compiled(pattern);
      ADD_FAILURE() << pattern;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << pattern << ": " << e.what();
    }
  }
  EXPECT_THROW(Compiled(std::string(100, '(') + std::string(100, ')')), Error);
}

}  // namespace
}  // namespace vlcache
