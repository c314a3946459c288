#include "base/ordered_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "base/error.h"
#include "base/exact_json.h"
#include "base/json.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;
using testing::HasSubstr;

// As nlohmann's own parser builds them, which looks at every member for each name.
TEST(OrderedJson, ValuesAreThoseOfTheLibrary) {
  for (const char* text :
       {"null", "[]", "{}", "[[],{}]", R"({"a":1,"b":[1,-2,3.5,true,null,"x\u00e9\n"],"c":{"a":{"a":0}}})",
        R"({"b":1,"a":2,"b":3})", R"({"b":{"x":1},"a":[2,{"b":1,"b":2}],"b":[3],"c":4,"a":5})", R"({"":1,"":2})",
        R"([{"a":1,"a":{"b":2,"b":{"c":[]}}}])"}) {
    EXPECT_EQ(parse_ordered_json(text, "t").dump(), OrderedJson::parse(text).dump()) << text;
  }
  // More members than are compared with each other.
  std::string text = "{";
  for (int i = 0; i < 100; ++i) text += "\"" + std::to_string(i * 37 % 50) + "\":" + std::to_string(i) + ",";
  text += "\"last\":{}}";
  EXPECT_EQ(parse_ordered_json(text, "t").dump(), OrderedJson::parse(text).dump());
}

TEST(OrderedJson, ErrorsAreThoseOfTheLibrary) {
  for (const std::string text : {"", "{", "[1,]", R"({"a" 1})", R"({"a":1,})", "nul", "[1] x", "\"\xff\"", "1e999",
                                 "{1:2}", "\xEF\xBB\xBF\xEF\xBB\xBF{}", "[-]", "\"\x01\""}) {
    std::string expected;
    try {
      [[maybe_unused]] const OrderedJson parsed = OrderedJson::parse(text);
    } catch (const OrderedJson::parse_error& e) {
      expected = "t: not valid JSON at byte " + std::to_string(e.byte);
    } catch (const OrderedJson::exception&) {
      expected = "t: not valid JSON: a number beyond 1.8e308";
    }
    std::string found;
    try {
      parse_ordered_json(text, "t");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInput);
      found = e.what();
    }
    EXPECT_THAT(found, testing::StartsWith(expected)) << text;
    EXPECT_TRUE(parse_ordered_or_discard(text).is_discarded());
  }
  EXPECT_THROW(parse_ordered_json(std::string(257, '[') + std::string(257, ']'), "t"), Error);
}

TEST(OrderedJson, ValuesAreCounted) {
  const std::string text = R"({"a":[1,2,{"b":3}],"c":"x"})";  // the object, its two members, three items and b
  EXPECT_EQ(read_ordered_json(text, "t", {.max_values = 7}).size(), 2u);
  try {
    parse_exact_json(text, "the request's body", 6);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kMemory);
    EXPECT_STREQ(e.what(), "the request's body: more than 6 values (members and items); send fewer");
  }
}

TEST(OrderedJson, MembersAreFoundAndSet) {
  OrderedJson object = {{"a", 1}, {"b", 2}};
  append_member(object, "c", 3);
  const MemberIndex index(object);
  EXPECT_EQ(*index.find("b"), 2);
  EXPECT_EQ(*index.find("c"), 3);
  EXPECT_EQ(index.find("d"), nullptr);
  EXPECT_EQ(MemberIndex(OrderedJson::array({1})).find("0"), nullptr);
  OrderedJson expected = object;
  const OrderedJson more = {{"d", 4}, {"b", {{"x", 1}}}};
  expected.update(more);
  update_members(object, more);
  EXPECT_EQ(object.dump(), expected.dump());
}

// Time of this thread to build an object of n members.
double seconds(const std::function<void(int)>& build, int n) {
  timespec begin{}, end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  build(n);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
}

// Four times the members take less than six times the time, in the best of some rounds: other work takes caches.
void expect_nearly_linear(const std::function<void(int)>& build) {
  double few = 1e9, many = 1e9;
  for (int i = 0; i == 0 || (i < 5 && many >= 6 * few + 0.02); ++i) {
    few = std::min(few, seconds(build, 20'000));
    many = std::min(many, seconds(build, 80'000));
  }
  EXPECT_LT(many, 6 * few + 0.02);
}

std::string object_of(int n, const std::function<std::string(int)>& name) {
  std::string text = "{";
  for (int i = 0; i < n; ++i) text += (i > 0 ? ",\"" : "\"") + name(i) + "\":[]";
  return text + "}";
}

TEST(OrderedJson, TimeIsNearlyLinearInTheMembers) {
  const std::function<std::string(int)> names[] = {[](int i) { return std::to_string(i); },
                                                   [](int i) { return std::to_string(i % 3); }};
  for (const auto& name : names) {
    expect_nearly_linear([&](int n) { parse_exact_json(object_of(n, name), "t"); });
  }
  expect_nearly_linear([&](int n) {
    OrderedJson object = parse_ordered_json(object_of(n, names[0]), "t");
    update_members(object, object);
    const MemberIndex index(object);
    for (int i = 0; i < n; ++i) ASSERT_NE(index.find(std::to_string(i)), nullptr);
  });
}

}  // namespace
}  // namespace vlcache
