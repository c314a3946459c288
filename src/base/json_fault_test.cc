// JSON as clients break it: halves of surrogate pairs are read, all else is named with its place.
#include "base/json_fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/exact_json.h"
#include "base/json.h"
#include "base/lone_surrogates.h"
#include "base/utf8.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string fault_of(std::string_view text) {
  return error_of([&] { parse_json(text, "t"); }, ErrorCode::kInput);
}

constexpr const char* kHalf = "\xEF\xBF\xBD";

TEST(LoneSurrogates, HalvesAreReplacedAndPairsStay) {
  const std::pair<const char*, std::string> cases[] = {
      {R"("a \ud83d b")", std::string("a ") + kHalf + " b"},
      {R"("\ud83d")", kHalf},
      {R"("\uDC00x")", std::string(kHalf) + "x"},
      {R"("\uD83D\uDE00")", "\xF0\x9F\x98\x80"},
      {R"("\ud83d\uDE00\ude00")", std::string("\xF0\x9F\x98\x80") + kHalf},
      {R"("\ude00\ud83d")", std::string(kHalf) + kHalf},
      {R"("\ud83d\ud83d\ude00")", std::string(kHalf) + "\xF0\x9F\x98\x80"},
      {R"("\udbff\udfff\ud800\u0041")", std::string("\xF4\x8F\xBF\xBF") + kHalf + "A"},
      {R"("\ud83d\n")", std::string(kHalf) + "\n"},
      {R"("\\ud83d")", "\\ud83d"},
      {R"("\\\ud83d")", std::string("\\") + kHalf},
      {R"("\ud83d\\ude00")", std::string(kHalf) + "\\ude00"},
      {R"("\\\\ud83d\"\udc00\"")", std::string("\\\\ud83d\"") + kHalf + "\""},
      {R"("\ufffd\ud7ff\ue000")", std::string(kHalf) + "\xED\x9F\xBF\xEE\x80\x80"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(parse_json(text, "t").get<std::string>(), expected) << text;
    EXPECT_EQ(parse_ordered_json(text, "t").get<std::string>(), expected) << text;
    EXPECT_EQ(parse_exact_json(text, "t").get<std::string>(), expected) << text;
    const std::string member = std::string("{\"k\": [") + text + "], " + text + ": 1}";
    const auto object = parse_ordered_json(member, "t");
    EXPECT_EQ(object["k"][0], expected) << text;
    EXPECT_EQ(object[expected], 1) << text;
  }
  std::string changed;
  const std::string_view whole = R"({"a": "\ud83d\ude00 \\ud83d"})";
  EXPECT_EQ(with_whole_pairs(whole, changed).data(), whole.data());  // not copied
}

TEST(LoneSurrogates, BrokenEscapesStayErrors) {
  for (const char* text :
       {R"("\ud83d\u12")", R"("\ud83)", R"("\u")", R"("\ud8zz")", R"("\ud83d\)", R"("\ud83d\ude0")"}) {
    EXPECT_THAT(fault_of(text), HasSubstr("not valid JSON at byte")) << text;
  }
}

// A conversation of halves alone costs no more than one of other escapes.
TEST(LoneSurrogates, TimeIsLinear) {
  std::string text = "\"";
  for (int i = 0; i < 100'000; ++i) text += i % 3 == 0 ? "\\udc00" : "\\ud83d";
  const std::clock_t begin = std::clock();
  std::string changed;
  EXPECT_EQ(with_whole_pairs(text, changed).size(), text.size());
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 2);
}

TEST(JsonFault, NamesTheFaultAndItsPlace) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "t: not valid JSON at byte 1: it is empty"},
      {" \r\n", "it is empty"},
      {"{\"text\": \"first line\nsecond\"}",
       "a raw line feed in a string; write \\n (near '...first line\\nsecond\"}')"},
      {"[\"a\tb\"]", "a raw tab in a string; write \\t (near '[\"a\\tb\"]')"},
      {"[\"a\rb\"]", "a raw carriage return in a string; write \\r"},
      {std::string("[\"a\0b\"]", 7), "a raw control character in a string"},
      {"[\"caf\xe9 au lait\"]",
       "t: not valid JSON at byte 7: bytes that are not UTF-8 (near '[\"caf\\xe9 au lait\"]')"},
      {"[\"\xed\xa0\x80\"]", "bytes that are not UTF-8 (near '[\"\\xed\\xa0\\x80\"]')"},
      {"[1, 2,]", "a comma before ] (near '[1, 2,]')"},
      {"{\"a\": 1,\n}", "a comma before } (near '{\"a\": 1,\\n}')"},
      {"{'a': 1}", "single quotes; JSON has double ones"},
      {"'{\"a\": 1}'", "single quotes; JSON has double ones"},
      {"{\"a\": 'b'}", "single quotes; JSON has double ones"},
      {"{\"a\": 1} // b", "a comment; JSON has none"},
      {"{\"a\": 1, /* b */ \"c\": 2}", "a comment; JSON has none"},
      {"# b\n{}", "a comment; JSON has none"},
      {"{\"temperature\": NaN}", "NaN is not a JSON number (near '...erature\": NaN}')"},
      {"[nan]", "nan is not a JSON number"},
      {"[-Infinity]", "-Infinity is not a JSON number"},
      {"[Infinity]", "Infinity is not a JSON number"},
      {"{\"stream\": True}", "True is Python's; JSON has true, false and null"},
      {"[None]", "None is Python's"},
      {"[undefined]", "undefined is JavaScript's; JSON has null"},
      {"{a: 1}", "a name without double quotes"},
      {"{\"a\": 1}{\"b\": 2}", "more text after the end of the JSON value"},
      {"{\"a\": 1} x", "not valid JSON at byte 10"},
      {"{\"a\": [1, ", "the text ends too early (near '{\"a\": [1, ')"},
      {"{\"a\": \"b", "the text ends within a string"},
      {"{\"a\": \"b\\x\"}", "an unknown escape; write \\\\ for a backslash"},
      {"[\"\\u12\"]", "\\u without four hexadecimal digits"},
      {"{\"a\" 1}", "expected ':'"},
      {"{\"a\": 1 \"b\": 2}", "a comma is missing"},
      {"[1 2]", "a comma is missing"},
      {R"({"text": "say "hi" to"})", "a comma is missing, or a quote in a string lacks its \\ (near"},
      {R"(["say "hi" to"])", "a comma is missing, or a quote in a string lacks its \\ (near"},
      {"[1}", "unexpected '}'; expected ']'"},
      {"[-]", "an incomplete number"},
      {"[tru]", "a word that is neither a number nor true, false or null"},
      {"[1e999]", "t: not valid JSON: a number beyond 1.8e308, '1e999'"},
      {"model=a&messages=b", "it is a form (a=b&c=d), expected JSON"},
      {"--b\r\nContent-Disposition: form-data; name=\"a\"", "it is a multipart form, expected JSON"},
      {"<html>", "it is HTML or XML, expected JSON (near '<html>')"},
      {std::string("\xff\xfe{\0}\0", 6), "it is UTF-16; write UTF-8"},
      {std::string("\0{\0}", 4), "it is UTF-16; write UTF-8"},
      {std::string("{\0}\0", 4), "it is UTF-16; write UTF-8"},
      {std::string("{\0\0\0}\0\0\0", 8), "it is UTF-32; write UTF-8"},
      {std::string("\0\0\0{", 4), "it is UTF-32; write UTF-8"},
      {std::string("\x1f\x8b\x08", 3), "it is compressed by gzip"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string fault = fault_of(text);
    EXPECT_THAT(fault, HasSubstr(expected)) << text;
    EXPECT_TRUE(is_valid_utf8(fault)) << fault;
    EXPECT_LT(fault.size(), 200u) << fault;
  }
}

TEST(JsonFault, ShowsWholeCharactersAndNoControls) {
  EXPECT_THAT(
      fault_of(
          "[\"\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F\xC3\xA9\xC3\xA8\n\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\"]"),
      HasSubstr("(near '...\xC3\xB6\xC3\xBC\xC3\x9F\xC3\xA9\xC3\xA8\\n\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC...')"));
  const std::string fault = fault_of("[\"\x1b[31m\xC2\x9B \xE2\x80\xAE \x7f\"]");
  EXPECT_THAT(fault, AllOf(HasSubstr("\\u001b[31m"), Not(HasSubstr("\x1b")), Not(HasSubstr("\x7f"))));
  EXPECT_LT(fault_of("[\"" + std::string(100'000, 'a') + "\n").size(), 200u);  // a long string is not quoted
}

TEST(JsonFault, ShowsNoKeys) {
  for (const char* text : {"{\"model\": \"m\"}POST / HTTP/1.1\r\nAuthorization: Bearer k3y", "{\"api_key\": \"k3y\n\"}",
                           "{\"headers\": {\"Cookie\": \"k3y\n\"}}", "[\"sk-k3y\n\"]", "api-key=k3y&a=b",
                           "{\"hf_token\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaak3y\n\"}"}) {
    EXPECT_THAT(fault_of(text), AllOf(HasSubstr("not valid JSON"), Not(HasSubstr("k3y")))) << text;
  }
  EXPECT_THAT(fault_of("{\"max_tokens\": 4, \"task-a\": 'b'}"), HasSubstr("near"));
}

}  // namespace
}  // namespace vlcache
