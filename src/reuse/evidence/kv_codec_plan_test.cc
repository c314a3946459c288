#include "reuse/evidence/kv_codec_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

CodecEvidence measured(int64_t n, int64_t n_changed, double kl) {
  return {.tokens = {.n = n, .n_changed = n_changed}, .kl = kl};
}

KvCodecPlan plan() {
  return {.model = "abc",
          .weights = "int4, quantiser 2",
          .dtype = "bf16",
          .codec = KvCodec::kInt8,
          .evidence = measured(2400, 6, 0.0012),
          .floor = {{"avx2", measured(2400, 5, 0.0011)}, {"chunks of 100", measured(2400, 1, 0.0002)}},
          .refused = {{"int4", measured(2400, 90, 0.02)}}};
}

const PlannedModel kModel{.model = "abc", .weights = "int4, quantiser 2", .dtype = "bf16"};

std::string fault_of(std::string_view text) {
  return error_of([&] { parse_kv_codec_plan(text, "kv_codec.json"); }, ErrorCode::kInput);
}

TEST(KvCodecPlan, SurvivesARoundTrip) {
  const std::string text = kv_codec_plan_json(plan());
  const KvCodecPlan again = parse_kv_codec_plan(text, "p");
  EXPECT_EQ(kv_codec_plan_json(again), text);
  EXPECT_EQ(again.codec, KvCodec::kInt8);
  EXPECT_EQ(again.weights, "int4, quantiser 2");
  EXPECT_EQ(again.evidence.tokens.n_changed, 6);
  EXPECT_EQ(again.floor.at("avx2").kl, 0.0011);
  EXPECT_EQ(again.refused.at("int4").tokens.n, 2400);
  KvCodecPlan values = plan();
  values.codec = KvCodec::kBF16;
  EXPECT_EQ(parse_kv_codec_plan(kv_codec_plan_json(values), "p").evidence.tokens.n, 0);  // nothing was taken
}

TEST(KvCodecPlan, IsFollowedWithinTheNoiseFloor) {
  EXPECT_EQ(obstacle_to(plan(), kModel), "");
  const auto refused = [](const std::function<void(KvCodecPlan&)>& change) {
    KvCodecPlan changed = plan();
    change(changed);
    return obstacle_to(changed, kModel);
  };
  // 6 of 2400 are at most 0.49 %; the floor is 6 of 4800, which with the margin permits 1.125 %.
  EXPECT_EQ(refused([](KvCodecPlan& p) { p.evidence.tokens.n_changed = 17; }), "");
  EXPECT_EQ(
      refused([](KvCodecPlan& p) { p.evidence.tokens.n_changed = 28; }),
      "what it measured permits no codes: int8: 2372 of 2400 likeliest tokens stayed the same, at most 1.6 % change "
      "(95 %), 1.12 % may; mean divergence 0.0012, 0.0021 may");
  EXPECT_EQ(refused([](KvCodecPlan& p) { p.evidence.kl = 0.0021; }), "");
  EXPECT_NE(refused([](KvCodecPlan& p) { p.evidence.kl = 0.0022; }), "");
  EXPECT_EQ(refused([](KvCodecPlan& p) { p.floor.clear(), p.evidence.kl = 0.001; }), "");
  EXPECT_EQ(refused([](KvCodecPlan& p) { p.evidence.tokens.n_changed = 28, p.margin = 0.02; }), "");
  EXPECT_NE(
      refused([](KvCodecPlan& p) { p.evidence.tokens = {.n = 1999, .n_changed = 0}; }).find("; 2000 tokens are needed"),
      std::string::npos);
  EXPECT_NE(refused([](KvCodecPlan& p) { p.evidence = {}; }).find("int8: not measured"), std::string::npos);
  KvCodecPlan values = plan();
  values.codec = KvCodec::kBF16, values.evidence = {};
  EXPECT_EQ(obstacle_to(values, kModel), "");
}

TEST(KvCodecPlan, HoldsForTheModelThatWasMeasured) {
  EXPECT_EQ(obstacle_to(plan(), {"abd", "int4, quantiser 2", "bf16"}), "it was measured with another model");
  EXPECT_EQ(obstacle_to(plan(), {"abc", "dense", "bf16"}),
            "it was measured with other weights (int4, quantiser 2) than these (dense)");
  EXPECT_EQ(obstacle_to(plan(), {"abc", "int4, quantiser 2", "f32"}),
            "it was measured in bf16, and this model computes in f32");
}

TEST(KvCodecPlan, DamagedFilesAreRefusedByTheirFault) {
  const std::string good = kv_codec_plan_json(plan());
  const auto fault = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return fault_of(text.replace(at, from.size(), to));
  };
  EXPECT_EQ(fault("\"int8\"", "\"int7\""),
            "kv_codec.json: codec: expected one of f32, bf16, int8, int4, k8v4, found \"int7\"");
  EXPECT_NE(fault("\"int8\"", "8"), "no error");
  EXPECT_NE(fault("\"margin\": 0.01", "\"margin\": 0"), "no error");
  EXPECT_EQ(fault("\"format\": 1", "\"format\": 2"), "kv_codec.json: format: expected 1, found 2");
  EXPECT_EQ(fault("\"changed\": 6", "\"changed\": 2401"),
            "kv_codec.json: evidence: changed: expected an integer from 0 to 2400, found 2401");
  EXPECT_EQ(fault("\"kl\": 0.0012", "\"kl\": -1"), "kv_codec.json: evidence: kl: expected a number >= 0, found -1");
  EXPECT_NE(fault("\"floor\": {", "\"flor\": {"), "no error");
  EXPECT_NE(fault("\"evidence\": {", "\"evidense\": {"), "no error");
  EXPECT_NE(fault("\"model\"", "\"modell\""), "no error");
  for (const std::string& text : {good.substr(0, good.size() / 2), std::string("[]")}) {
    EXPECT_NE(fault_of(text), "no error") << text;
  }
}

}  // namespace
}  // namespace vlcache
