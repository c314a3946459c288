// Text files as other programs write them: marks, numbers that JSON lacks, and pointers in place of files.
#include "base/config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::HasSubstr;

TEST(ConfigJson, NumbersOfPythonAreTextsThatNoNumberIs) {
  const Json json = parse_config_json(
      R"({"a": NaN, "b": [1, -Infinity, Infinity], "c": "NaN \" Infinity", "NaN": {"d": NaN}, "e": 1.5})", "f");
  EXPECT_EQ(json, Json::parse(R"({"a": "NaN", "b": [1, "-Infinity", "Infinity"], "c": "NaN \" Infinity",
                                  "NaN": {"d": "NaN"}, "e": 1.5})"));
  EXPECT_EQ(error_of([&] { JsonObject(json, "f").number("a"); }), "f: a: expected a number, found \"NaN\"");
  EXPECT_EQ(error_of([&] { JsonObject(json, "f").integer("a", 1); }), "f: a: expected an integer, found \"NaN\"");
  const auto ordered = parse_ordered_config_json(R"({"z": Infinity, "a": NaN})", "f");
  EXPECT_EQ(ordered.dump(), R"({"z":"Infinity","a":"NaN"})");
  for (const char* bad :
       {"NaN NaN", "{NaN: 1}{", "[-NaN]", "[+Infinity]", "[1Infinity]", "[nan]", "[Infinit]", "\"NaN"}) {
    EXPECT_EQ(error_of([&] { parse_config_json(bad, "f"); }), error_of([&] { parse_json(bad, "f"); })) << bad;
  }
  EXPECT_THAT(error_of([] { parse_json("[NaN]", "f"); }), HasSubstr("not valid JSON")) << "requests stay JSON";
}

class TextFile : public testing::Test {
 protected:
  ~TextFile() override { std::filesystem::remove(path_); }
  std::string read(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
    return read_text_file(path_);
  }
  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) / ("vlcache_text_" + std::to_string(::getpid()));
};

TEST_F(TextFile, AMarkBeforeTheTextIsLeftOut) {
  EXPECT_EQ(read("\xef\xbb\xbf{}"), "{}");
  EXPECT_EQ(read("\xef\xbb\xbf"), "");
  EXPECT_EQ(read("a\xef\xbb\xbf"), "a\xef\xbb\xbf");
  EXPECT_EQ(read("\xef\xbb"), "\xef\xbb");
  EXPECT_EQ(error_of([&] { read(std::string("\xff\xfe{\0}\0", 6)); }),
            path_.string() + ": expected text in UTF-8, found UTF-16");
  EXPECT_EQ(without_bom("\xef\xbb\xbfx"), "x");
  read("\xef\xbb\xbf{\"a\": NaN}");
  EXPECT_EQ(load_json(path_).dump(), R"({"a":"NaN"})");
}

TEST_F(TextFile, APointerOfGitLfsIsNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  EXPECT_THAT(error_of([&] { read(pointer); }),
              HasSubstr(": it is a Git LFS pointer, not the file itself: run git lfs"));
  EXPECT_THAT(error_of([&] { read("\xef\xbb\xbf" + pointer); }), HasSubstr("it is a Git LFS pointer"));
  EXPECT_EQ(read(" " + pointer), " " + pointer);
  EXPECT_EQ(lfs_pointer_reason(pointer + std::string(2000, ' ')), "") << "a file that begins so";
}

}  // namespace
}  // namespace vlcache
