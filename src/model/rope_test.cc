// Rope tables against transformers 5.23: inv_freq of LlamaRotaryEmbedding (head_dim 32) and cos at position 1000.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace vlcache {
namespace {

struct Expected {
  RopeConfig config;
  std::vector<std::pair<int, double>> frequencies;  // channel, radians per position
  std::vector<std::pair<int, double>> cos_1000;
};

void check(const Expected& e) {
  const RopeTable table(e.config, 32);
  for (const auto& [c, f] : e.frequencies) EXPECT_NEAR(table.frequencies()[static_cast<size_t>(c)] / f, 1.0, 3e-7) << c;
  std::vector<float> cos(32), sin(32);
  const std::vector<Position> positions = {Position::all(0), Position::all(1000)};
  table.fill(positions, Tensor(cos.data(), DType::kF32, {2, 16}), Tensor(sin.data(), DType::kF32, {2, 16}));
  // An ulp of a frequency is 6e-5 radians at position 1000.
  for (const auto& [c, x] : e.cos_1000) EXPECT_NEAR(cos[16 + static_cast<size_t>(c)], x, 1e-4) << c;
  const double scale = e.config.attention_factor;
  for (size_t c = 0; c < 16; ++c) {
    EXPECT_NEAR(cos[c], scale, 1e-6);
    EXPECT_NEAR(std::hypot(cos[16 + c], sin[16 + c]), scale, 1e-6);
  }
}

TEST(Rope, Default) {
  check({{.theta = 1e4},
         {{0, 1}, {1, 0.562341332}, {7, 0.0177827943}, {15, 0.00017782794}},
         {{0, 0.5623791}, {1, -0.9999928}, {15, 0.9842302}}});
}

TEST(Rope, Linear) {
  check({{.type = RopeType::kLinear, .theta = 1e4, .factor = 4},
         {{0, 0.25}, {5, 0.0140585322}, {15, 4.44569851e-05}},
         {{1, -0.7064389}, {9, 0.1641962}}});
}

TEST(Rope, Llama3) {
  check(
      {{.type = RopeType::kLlama3,
        .theta = 5e5,
        .factor = 32,
        .low_freq_factor = 1,
        .high_freq_factor = 4,
        .original_positions = 8192},
       {{0, 1}, {6, 0.00729266508}, {7, 0.00321144611}, {8, 0.000429556705}, {9, 1.94616387e-05}, {15, 1.41927202e-07}},
       {{7, -0.9975612}, {8, 0.9091505}}});
}

TEST(Rope, Yarn) {
  Expected e = {{.type = RopeType::kYarn,
                 .theta = 1e6,
                 .factor = 4,
                 .original_positions = 32768,
                 .attention_factor = 1.138629436111989},
                {{0, 1}, {5, 0.0133352149}, {6, 0.00477990136}, {9, 0.000168678584}, {15, 5.92843435e-07}},
                {{0, 0.6403413}, {6, 0.0768134}, {9, 1.1224694}}};
  check(e);
  e = {{.type = RopeType::kYarn,
        .theta = 1e4,
        .factor = 8,
        .original_positions = 4096,
        .beta_fast = 16,
        .truncate = false,
        .attention_factor = 0.9167912505456107},
       {{6, 0.0316227786}, {7, 0.0159744546}, {10, 0.00111725123}, {12, 0.000125000006}},
       {{7, -0.8844292}, {10, 0.4016966}}};
  check(e);
}

TEST(Rope, YarnAttentionFactor) {
  const auto parse = [](const char* text) {
    const Json json = parse_json(text, "t");
    return parse_rope_config(JsonObject(json, "t"), 131072);
  };
  EXPECT_DOUBLE_EQ(
      parse(R"({"rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":32768}})").attention_factor,
      1.138629436111989);
  EXPECT_DOUBLE_EQ(
      parse(R"({"rope_scaling":{"type":"yarn","factor":8,"mscale":0.7,"mscale_all_dim":1.2}})").attention_factor,
      0.9167912505456107);
  EXPECT_DOUBLE_EQ(parse(R"({"rope_scaling":{"type":"yarn","original_max_position_embeddings":32768}})").factor, 4.0);
}

// Which component of a position turns which frequency, by transformers' Qwen2_5_VLRotaryEmbedding (split by sections)
// and Qwen3VLTextRotaryEmbedding (freqs_thw[1:3s:3], [2:3s:3]).
TEST(Rope, SectionsDealFrequenciesToComponents) {
  const auto axes = [](const RopeConfig& config) {
    std::string text;
    const RopeTable table(config, 16);
    for (const RopeAxis axis : table.axes()) text += axis == RopeAxis::kT ? 't' : axis == RopeAxis::kH ? 'h' : 'w';
    return text;
  };
  EXPECT_EQ(axes({}), "tttttttt");
  EXPECT_EQ(axes({.sections = {2, 3, 3}}), "tthhhwww");
  EXPECT_EQ(axes({.sections = {4, 2, 2}, .interleaved = true}), "thwthwtt");
  const RopeTable table({.sections = {2, 3, 3}}, 16), text({}, 16);
  std::vector<float> cos(8), sin(8), of_w(8), sin_of_w(8);
  const auto tensor = [](std::vector<float>& x) { return Tensor(x.data(), DType::kF32, {1, 8}); };
  const std::vector<Position> at = {{3, 5, 9}}, w = {Position::all(9)};
  table.fill(at, tensor(cos), tensor(sin));
  text.fill(w, tensor(of_w), tensor(sin_of_w));
  EXPECT_EQ(cos[7], of_w[7]);
  EXPECT_EQ(sin[5], sin_of_w[5]);
  EXPECT_NE(cos[0], of_w[0]);
}

}  // namespace
}  // namespace vlcache
