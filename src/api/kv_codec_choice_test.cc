#include "api/kv_codec_choice.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace vlcache {
namespace {

std::string fault_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.what();
  }
  return "";
}

TEST(KvCodecChoice, Names) {
  EXPECT_FALSE(parse_kv_codec("auto").codec.has_value());
  EXPECT_EQ(parse_kv_codec("bf16").codec, KvCodec::kBF16);
  EXPECT_EQ(parse_kv_codec("f32").codec, KvCodec::kF32);
  EXPECT_EQ(parse_kv_codec("int8").codec, KvCodec::kInt8);
  EXPECT_EQ(parse_kv_codec("int8").note, "");
  EXPECT_EQ(parse_kv_codec("q8_0,q8_0").codec, KvCodec::kInt8);
  EXPECT_EQ(parse_kv_codec("q8_0").note, "KV codec 'q8_0' is read as int8");
}

TEST(KvCodecChoice, OtherNamesAreRefusedWithTheNearest) {
  EXPECT_EQ(fault_of([] { parse_kv_codec("f16"); }),
            "unknown KV codec 'f16'; the nearest is bf16; allowed are auto, bf16, f32, int8");
  EXPECT_EQ(fault_of([] { parse_kv_codec("iq4_nl"); }),
            "unknown KV codec 'iq4_nl'; the nearest is int8; allowed are auto, bf16, f32, int8");
  for (const char* pair : {"q8_0,q4_0", "q8_0,f16", "bf16,q8_0"}) {
    EXPECT_EQ(fault_of([&] { parse_kv_codec(pair); }),
              "unknown KV codec '" + std::string(pair) +
                  "'; K and V have one codec, the nearest is int8; allowed are auto, bf16, f32, int8");
  }
  for (const char* name : {"", "INT8", "int8 ", "q8_0,", "q8_0,int2", "int2"}) {
    EXPECT_EQ(fault_of([&] { parse_kv_codec(name); }),
              "unknown KV codec '" + std::string(name) + "'; allowed are auto, bf16, f32, int8");
  }
}

TEST(KvCodecChoice, TheOlderFlagMustAgree) {
  EXPECT_EQ(joined_kv_codec("auto", "auto"), std::nullopt);
  EXPECT_EQ(joined_kv_codec("auto", "f32"), KvCodec::kF32);
  EXPECT_EQ(joined_kv_codec("int8", "auto"), KvCodec::kInt8);
  EXPECT_EQ(joined_kv_codec("bf16", "bf16"), KvCodec::kBF16);
  EXPECT_EQ(fault_of([] { joined_kv_codec("int8", "f32"); }),
            "--kv-codec int8 contradicts --kv-dtype f32, an older name of the same flag; leave out one");
}

}  // namespace
}  // namespace vlcache
