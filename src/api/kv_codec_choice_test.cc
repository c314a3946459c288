#include "api/kv_codec_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

TEST(KvCodecChoice, Names) {
  EXPECT_FALSE(parse_kv_codec("auto").codec.has_value());
  for (int i = 0; i < kKvCodecs; ++i) {
    const auto codec = static_cast<KvCodec>(i);
    EXPECT_EQ(parse_kv_codec(kv_codec_name(codec)).codec, codec);
    EXPECT_EQ(parse_kv_codec(kv_codec_name(codec)).note, "");
  }
}

TEST(KvCodecChoice, NamesOfOtherProgramsAreReadWithANote) {
  const std::pair<const char*, KvCodec> names[] = {{"q8_0", KvCodec::kInt8},      {"q8_0,q8_0", KvCodec::kInt8},
                                                   {"u8", KvCodec::kInt8},        {"q4_0", KvCodec::kInt4},
                                                   {"u4,q4_0", KvCodec::kInt4},   {"q8_0,q4_0", KvCodec::kK8V4},
                                                   {"int8,int4", KvCodec::kK8V4}, {"bf16,bf16", KvCodec::kBF16}};
  for (const auto& [name, codec] : names) {
    EXPECT_EQ(parse_kv_codec(name).codec, codec) << name;
    EXPECT_EQ(parse_kv_codec(name).note,
              "KV codec '" + std::string(name) + "' is read as " + std::string(kv_codec_name(codec)));
  }
}

TEST(KvCodecChoice, OtherNamesAreRefusedWithTheNearest) {
  const std::string allowed = "; allowed are auto, bf16, f32, int8, k8v4, int4";
  const std::pair<const char*, const char*> names[] = {
      {"f16", "bf16"},       {"iq4_nl", "int4"},    {"q5_0", "int8"},    {"f16,f16", "bf16"}, {"q8_0,f16", "bf16"},
      {"bf16,q4_0", "bf16"}, {"q4_0,q8_0", "int8"}, {"f32,int8", "f32"}, {"f32,bf16", "f32"}, {"q8_0,iq4_nl", "k8v4"}};
  for (const auto& [name, nearest] : names) {
    EXPECT_EQ(error_of([&, name = name] { parse_kv_codec(name); }),
              "unknown KV codec '" + std::string(name) + "'; the nearest is " + nearest + allowed);
  }
  for (const char* name : {"", "INT8", "int8 ", "q8_0,", ",q8_0", "q8_0,int2", "int2", "k8v4,k8v4", "q8_0,q8_0,q8_0"}) {
    EXPECT_EQ(error_of([&] { parse_kv_codec(name); }), "unknown KV codec '" + std::string(name) + "'" + allowed);
  }
}

TEST(KvCodecChoice, TheOlderFlagMustAgree) {
  EXPECT_EQ(joined_kv_codec("auto", "auto"), std::nullopt);
  EXPECT_EQ(joined_kv_codec("auto", "f32"), KvCodec::kF32);
  EXPECT_EQ(joined_kv_codec("int8", "auto"), KvCodec::kInt8);
  EXPECT_EQ(joined_kv_codec("bf16", "bf16"), KvCodec::kBF16);
  EXPECT_EQ(error_of([] { joined_kv_codec("int8", "f32"); }),
            "--kv-codec int8 contradicts --kv-dtype f32, an older name of the same flag; leave out one");
}

}  // namespace
}  // namespace vlcache
