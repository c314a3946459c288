// Safetensors: round trips, and files whose headers are false.
#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::HasSubstr;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    dir_ = std::filesystem::temp_directory_path() / ("vlcache-st-" + std::to_string(::getpid()) + "-" +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return dir_ / name;
  }
  static std::string file(const std::string& header, size_t data_bytes) {
    const uint64_t n = header.size();
    std::string s(reinterpret_cast<const char*>(&n), sizeof n);
    return s + header + std::string(data_bytes, '\1');
  }
  static std::string one(const std::string& body) { return R"({"a":{)" + body + "}}"; }
  std::filesystem::path dir_;
};

std::string header_error(const std::string& bytes) {
  return error_of(
      [&] { parse_safetensors_header(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), "f"); });
}

TEST_F(SafetensorsTest, WritesAndReadsBack) {
  std::vector<float> a = {1.5f, -2.0f, 3.25f, 0.0f, 5.0f, 6.0f};
  std::vector<int64_t> b = {1, -2, 3};
  const std::vector<NamedTensor> tensors = {{"x", Tensor(a.data(), DType::kF32, {2, 3})},
                                            {"y", Tensor(b.data(), DType::kI64, {3})}};
  write_safetensors(dir_ / "t.safetensors", tensors);
  const Safetensors files = Safetensors::open(dir_ / "t.safetensors");
  EXPECT_THAT(files.names(), testing::ElementsAre("x", "y"));
  const int64_t shape[] = {2, 3};
  const Tensor x = files.get("x", shape);
  EXPECT_EQ(std::memcmp(x.data, a.data(), sizeof(float) * a.size()), 0);
  EXPECT_EQ(files.get("y").as<int64_t>()[1], -2);
  files.release("x");
  EXPECT_EQ(x.as<float>()[5], 6.0f);  // read from the file again
  EXPECT_EQ(files.data_bytes(), 24 + 24);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(SafetensorsTest, FailedWriteLeavesNoFile) {
  float x = 1;
  const std::vector<NamedTensor> tensors = {{"x", Tensor(&x, DType::kF32, {1})}};
  EXPECT_THAT(error_of([&] { write_safetensors(dir_ / "no" / "t", tensors); }), HasSubstr("No such file"));
  // A file size limit stands in for a full disk.
  std::vector<float> big(1 << 18);
  const std::vector<NamedTensor> large = {{"x", Tensor(big.data(), DType::kF32, {1 << 18})}};
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { write_safetensors(dir_ / "t", large); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(error, HasSubstr("writing failed"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(SafetensorsTest, ErrorsDescribeTheRequestedTensor) {
  const auto path = write("t", file(R"({"f8":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                                    R"("five":{"dtype":"U8","shape":[1,1,1,1,2],"data_offsets":[4,6]},)"
                                    R"("new":{"dtype":"X9","shape":[9],"data_offsets":[6,7]},)"
                                    R"("s":{"dtype":"F32","shape":[],"data_offsets":[7,11]}})",
                                    11));
  const Safetensors files = Safetensors::open(path);
  EXPECT_THAT(error_of([&] { files.get("f8"); }), HasSubstr("F8_E4M3 is not supported"));
  EXPECT_THAT(error_of([&] { files.get("new"); }), HasSubstr("X9 is not supported"));
  EXPECT_THAT(error_of([&] { files.get("five"); }), HasSubstr("5 dimensions"));
  EXPECT_THAT(error_of([&] { files.get("none"); }), HasSubstr("no tensor \"none\""));
  const int64_t shape[] = {2, 2};
  EXPECT_THAT(error_of([&] { files.get("f8", shape); }),
              HasSubstr("expected shape [2, 2] (from config.json), found [4]"));
  EXPECT_EQ(files.get("s").describe(), "f32[1]");  // misaligned, and still readable bytewise
}

TEST_F(SafetensorsTest, RejectsATruncatedMappedFile) {
  const auto path = write("t", file(one(R"("dtype":"U8","shape":[9000],"data_offsets":[0,9000])"), 9000));
  const Safetensors files = Safetensors::open(path);
  std::filesystem::resize_file(path, 100);
  EXPECT_THAT(error_of([&] { files.get("a"); }), HasSubstr("is now 100"));
}

TEST_F(SafetensorsTest, RejectsInvalidHeaders) {
  const std::string good = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
  EXPECT_EQ(header_error(file(one(good), 4)), "no error");
  EXPECT_EQ(header_error(file(R"({"__metadata__":{"format":"pt"},"a":{)" + good + "}}  ", 4)), "no error");
  EXPECT_EQ(header_error(file("{}", 0)), "no error");

  EXPECT_THAT(header_error(""), HasSubstr("only 0 bytes"));
  EXPECT_THAT(header_error("1234567"), HasSubstr("only 7 bytes"));
  EXPECT_THAT(header_error(file("", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(header_error(file(one(good), 4).substr(0, 20)), HasSubstr("truncated"));
  EXPECT_THAT(header_error(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), HasSubstr("header claims"));
  EXPECT_THAT(header_error(file("[1]", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(header_error(file("{\"a\":", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error(file("{\"a\":" + std::string(200000, '['), 0)), HasSubstr("found an array"));
  EXPECT_THAT(header_error(file("{\"a\":" + std::string(200000, '{'), 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error(file(R"({"a":{"b":{"c":{}}}})", 0)), HasSubstr("deeper nesting"));
  EXPECT_THAT(header_error(file(R"({"a":1})", 0)), HasSubstr("found the number 1"));
  EXPECT_THAT(header_error(file(one(good + R"(,"more":"x")"), 4)), HasSubstr("found a string"));
  EXPECT_THAT(header_error(file(one(R"("dtype":"U8","shape":[4])"), 4)),
              HasSubstr("expected dtype, shape and data_offsets"));
  EXPECT_THAT(header_error(file(one(good + R"(,"dtype":"U8")"), 4)), HasSubstr("dtype stands twice"));
  EXPECT_THAT(header_error(file("{\"a\":{" + good + "},\"a\":{" + good + "}}", 4)), HasSubstr("stands twice"));
}

TEST_F(SafetensorsTest, RejectsInvalidSpans) {
  const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return one(std::string("\"dtype\":\"") + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
  };
  EXPECT_THAT(header_error(file(entry("U8", "[4]", "[0,5]"), 4)), HasSubstr("do not lie within the file's 4 bytes"));
  EXPECT_THAT(header_error(file(entry("U8", "[4]", "[4,0]"), 4)), HasSubstr("do not lie within"));
  EXPECT_THAT(header_error(file(entry("U8", "[4]", "[-1,4]"), 4)), HasSubstr("found the number -1"));
  EXPECT_THAT(header_error(file(entry("U8", "[4]", "[0,4.5]"), 4)), HasSubstr("found the number 4.5"));
  EXPECT_THAT(header_error(file(entry("U8", "[4]", "[0,4,5]"), 4)), HasSubstr("found more"));
  EXPECT_THAT(header_error(file(entry("U8", "[4]", "[4]"), 4)), HasSubstr("expected two"));
  EXPECT_THAT(header_error(file(entry("U8", "[\"4\"]", "[0,4]"), 4)), HasSubstr("found a string"));
  EXPECT_THAT(header_error(file(entry("U8", "[18446744073709551616]", "[0,4]"), 4)), HasSubstr("found the number"));
  EXPECT_THAT(header_error(file(entry("F32", "[2]", "[0,4]"), 4)), HasSubstr("need 8 bytes"));
  EXPECT_THAT(header_error(file(entry("F32", "[4611686018427387904,4611686018427387904]", "[0,4]"), 4)),
              HasSubstr("more bytes than there are"));
  EXPECT_THAT(header_error(file(entry("F32", "[4611686018427387905]", "[0,4]"), 4)),
              HasSubstr("more bytes than there are"));
  EXPECT_THAT(header_error(file(entry("U8", "[2]", "[2,4]"), 4)), HasSubstr("a hole before it"));
  EXPECT_THAT(header_error(file(entry("U8", "[2]", "[0,2]"), 4)), HasSubstr("the file has 4"));
  EXPECT_THAT(header_error(file(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                                4)),
              HasSubstr("overlaps another tensor"));
}

TEST_F(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string whole = file(one(R"("dtype":"F32","shape":[2,2],"data_offsets":[0,16])"), 16);
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(header_error(whole.substr(0, n)), "no error") << n;
}

TEST_F(SafetensorsTest, ShardsFollowTheirIndex) {
  write("s1", file(one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])"), 4));
  write("s2", file(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
  const Safetensors files =
      Safetensors::open_index(write("i.json", R"({"metadata":{},"weight_map":{"a":"s1","b":"s2"}})"));
  EXPECT_EQ(files.get("b").describe(), "u8[2]");
  EXPECT_EQ(files.data_bytes(), 6);
  const auto index_error = [&](const std::string& map) {
    return error_of([&] { Safetensors::open_index(write("i.json", R"({"weight_map":)" + map + "}")); });
  };
  EXPECT_THAT(index_error(R"({"a":"s1","b":"s1"})"), HasSubstr("\"b\" is in \"s1\", where it is not"));
  EXPECT_THAT(index_error(R"({"a":"s3"})"), HasSubstr("i.json: names the file \"s3\", which does not exist"));
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);  // no process ever writes to it
  EXPECT_THAT(index_error(R"({"a":"pipe"})"), HasSubstr("pipe: expected a regular file"));
  EXPECT_THAT(index_error(R"({"a":"../s1"})"), HasSubstr("same directory"));
  EXPECT_THAT(index_error(R"({"a":1})"), HasSubstr("the name of a file"));
  EXPECT_THAT(index_error(R"([])"), HasSubstr("expected an object"));
}

}  // namespace
}  // namespace vlcache
