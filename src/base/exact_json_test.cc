#include "base/exact_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vlcache {
namespace {

TEST(ExactJson, IntegersKeepTheirDigits) {
  for (const char* text : {R"({"a":[12345678901234567890123,-99999999999999999999,1.5,7],"b":"\"x\\"})", "[1,2]", "{}",
                           "18446744073709551615", "18446744073709551616", R"(["12345678901234567890123"])"}) {
    EXPECT_EQ(dump_exact_json(parse_exact_json(text, "t")), text);
  }
  const nlohmann::ordered_json value = parse_exact_json("[100000000000000000000, 1e30]", "t");
  EXPECT_EQ(exact_digits(value[0]), "100000000000000000000");
  EXPECT_EQ(exact_digits(value[1]), "");
  EXPECT_EQ(with_plain_numbers(value)[0].get<double>(), 1e20);
  // A name that is there twice: its last value.
  EXPECT_EQ(dump_exact_json(parse_exact_json(R"({"a":1.5,"b":100000000000000000000,"a":200000000000000000000})", "t")),
            R"({"a":200000000000000000000,"b":100000000000000000000})");
}

}  // namespace
}  // namespace vlcache
