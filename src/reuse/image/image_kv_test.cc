// Images in every form: bytes, rows, kept tokens.
#include "reuse/image/image_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "ops/factory.h"
#include "policy/fixed_slots_testing.h"
#include "reuse/image/image_keep.h"
#include "reuse/image/image_store.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using Codec = ImageKvForm::Codec;

constexpr int64_t kHeads = 2, kDim = 32;

// Layer 1 shares layer 0's KV.
KvShape shape_of(KvCodec codec = KvCodec::kF32) {
  KvShape shape = KvShape::uniform(3, kHeads, kDim, codec);
  shape.layers[1].shares = 0;
  return shape;
}

struct Rows {
  explicit Rows(int64_t n, uint32_t seed = 0) : values(static_cast<size_t>(n * kHeads * kDim)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : values) value = seed == 0 ? NAN : normal(random);
    tensor = Tensor(values.data(), DType::kF32, {n, kHeads, kDim});
  }
  std::vector<float> values;
  Tensor tensor;
};

class ImageForms : public testing::Test {
 protected:
  const std::unique_ptr<Backend> backend_ = make_backend("ref", DType::kF32);
  const KvShape shape_ = shape_of();
};

TEST_F(ImageForms, UseThePredictedNumberOfBytes) {
  const auto layer = [&](const ImageKvForm& form) {
    const ImageKv image(shape_, form, 10);
    EXPECT_TRUE(image.layer_bytes(1).empty());
    EXPECT_EQ(image.bytes(), ImageKv::bytes_of(shape_, form, 10));
    return image.layer_bytes(2).size();
  };
  EXPECT_EQ(layer({}), 10 * 2 * 2 * 32 * 4u);
  EXPECT_EQ(layer({.codec = Codec::kInt8}), 10 * 2 * 2 * 34u);
  EXPECT_EQ(layer({.codec = Codec::kInt4}), 10 * 2 * 2 * 18u);
  EXPECT_EQ(layer({.codec = Codec::kInt8, .share = 0.21, .scorer = "knorm"}), 3 * (4 + 2 * 2 * 34u));
}

TEST_F(ImageForms, ReadBackWrittenRows) {
  const Rows k(10, 1), v(10, 2);
  for (const Codec codec : {Codec::kExact, Codec::kInt8, Codec::kInt4}) {
    ImageKv image(shape_, {.codec = codec}, 10);
    for (int32_t row = 0; row < 10; row += 5) {
      image.write(2, row, k.tensor.slice_rows(row, row + 5), v.tensor.slice_rows(row, row + 5));
    }
    const Rows k_back(4), v_back(4);
    image.read(*backend_, 2, 3, k_back.tensor, v_back.tensor);
    // 3 standard deviations of values around 0 in 127, or 7, steps: half a step off at most (kv_codec_test.cc).
    const float most = codec == Codec::kExact ? 0 : codec == Codec::kInt8 ? 0.02f : 0.4f;
    for (size_t i = 0; i < k_back.values.size(); ++i) {
      ASSERT_NEAR(k_back.values[i], k.values[i + 3 * kHeads * kDim], most);
      ASSERT_NEAR(v_back.values[i], v.values[i + 3 * kHeads * kDim], most);
    }
    ImageKv other(shape_, {.codec = codec}, 10);
    other.write(2, 0, v.tensor, k.tensor);
    other.take_rows(image, 2, 7);
    other.read(*backend_, 2, 6, k_back.tensor, v_back.tensor);
    EXPECT_NEAR(k_back.values[0], k.values[6 * kHeads * kDim], most);
    EXPECT_NEAR(k_back.values[kHeads * kDim], v.values[7 * kHeads * kDim], most);
  }
}

// The cosine of a key and the mean of all unit keys: tokens 1 and 4 point elsewhere in layer 0, 2 and 3 in layer 2.
TEST_F(ImageForms, KeepTokensWithDistinctKeys) {
  const ImageKvForm form{.codec = Codec::kInt8, .share = 0.4, .scorer = "key_diff"};
  ImageKv all(shape_, form.complete(), 5);
  const Rows v(5, 4);
  const std::vector<std::vector<int32_t>> different{{1, 4}, {}, {2, 3}};
  for (const int32_t layer : {0, 2}) {
    const Rows k(5);
    for (int64_t i = 0; i < 5; ++i) {
      const bool other =
          std::ranges::find(different[static_cast<size_t>(layer)], i) != different[static_cast<size_t>(layer)].end();
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t c = 0; c < kDim; ++c) k.tensor.row<float>(i)[h * kDim + c] = c == (other ? i : 7) ? 3.0f : 0.1f;
      }
    }
    all.write(layer, 0, k.tensor, v.tensor);
  }
  const std::shared_ptr<const ImageKv> kept = keep_best(*backend_, shape_, form, all);
  EXPECT_EQ(kept->n_kept(), 2);
  EXPECT_EQ(kept->n_tokens(), 5);
  for (const int32_t layer : {0, 2}) {
    EXPECT_TRUE(kept->valid(layer));
    for (int32_t token = 0, row = 0; token < 5; ++token) {
      const bool stays = std::ranges::count(different[static_cast<size_t>(layer)], token) > 0;
      ASSERT_EQ(kept->row_of(layer, token), stays ? row : -1) << layer << " " << token;
      if (!stays) continue;
      const Rows k_kept(1), v_kept(1), k_all(1), v_all(1);
      kept->read(*backend_, layer, row++, k_kept.tensor, v_kept.tensor);
      all.read(*backend_, layer, token, k_all.tensor, v_all.tensor);
      EXPECT_EQ(k_kept.values, k_all.values);  // not coded a second time
      EXPECT_EQ(v_kept.values, v_all.values);
    }
  }
}

TEST_F(ImageForms, RejectInvalidTokenIndices) {
  const ImageKvForm form{.share = 0.5, .scorer = "knorm"};
  ImageKv image(shape_, form, 6);
  const auto says = [&](std::vector<int32_t> tokens) {
    std::memcpy(image.layer_bytes(0).data(), tokens.data(), sizeof(int32_t) * tokens.size());
    return image.valid(0);
  };
  EXPECT_TRUE(says({0, 2, 5}));
  for (const std::vector<int32_t>& wrong :
       {std::vector<int32_t>{0, 2, 6}, {-1, 2, 3}, {2, 2, 3}, {3, 1, 2}, {0, 1, INT32_MAX}, {INT32_MIN, 1, 2}}) {
    EXPECT_FALSE(says(wrong)) << wrong[0] << wrong[2];
  }
}

TEST_F(ImageForms, KeepTokensEvenIfKeysAreNan) {
  const ImageKvForm form{.share = 0.5, .scorer = "key_diff"};
  ImageKv all(shape_, form.complete(), 6);
  const Rows nothing(6);  // NaN
  for (const int32_t layer : {0, 2}) all.write(layer, 0, nothing.tensor, nothing.tensor);
  const auto kept = keep_best(*backend_, shape_, form, all);
  EXPECT_TRUE(kept->valid(0));
}

// Text, three rows of an image, a word between its tiles, two more rows; layer 1 has no KV of its own.
TEST(RepeatedImage, KeepsTokensWithTheMostAttentionOfTheRepetition) {
  const FixedSlots slots({{6, 6}, {}, {6, 6}});
  std::vector<TokenInfo> tokens(6);
  for (const size_t i : {1, 2, 4, 5}) tokens[i].meta.modality = Modality::kVision;
  std::vector<float> seen[2] = {{9, .1f, .2f, 9, .5f, .3f, 9, .1f, .8f, 9, 0, .2f},  // sums .2 1.0 .5 .5
                                {9, 0, 0, 9, .1f, 0, 9, .9f, 0, 9, .1f, .1f}};       // .9 0 .2 .1
  Capture capture;
  capture.layers.resize(3);
  for (const size_t layer : {0, 2})
    capture.layers[layer].window_max = Tensor(seen[layer / 2].data(), DType::kF32, {2, 6});
  KeptTokens kept;
  const RepeatedImage policy({.share = 0.5, .scorer = "kvzip"}, 1,
                             [&](KeptTokens tokens) { kept = std::move(tokens); });
  EXPECT_EQ(policy.needs({})[0].replay.n_sinks, 1);
  EXPECT_TRUE(policy.computes_as_full() && !policy.evicts());
  const Capture* captures[] = {&capture};
  const PlanInputs in{.slots = slots, .tokens = tokens, .prompt = {.n_tokens = 6, .n_vision = 4}, .captures = captures};
  KeepPlan plan;
  EXPECT_FALSE(policy.plan(in, plan));
  EXPECT_EQ(kept, (KeptTokens{{1, 3}, {}, {0, 2}}));  // of equals the later
  capture.problem = "is too long";
  EXPECT_THROW(policy.plan(in, plan), Error);
}

TEST(ImageKvForm, Names) {
  ImageKvForm form;
  EXPECT_EQ(form.name(), "exact");
  EXPECT_TRUE(form.exact());
  form.codec = parse_image_codec("int4");
  EXPECT_EQ(form.name(), "int4");
  parse_image_keep("0.25:knorm", form);
  EXPECT_EQ(form.name(), "int4, 0.25:knorm");
  EXPECT_EQ(form.n_kept(10), 3);
  EXPECT_EQ(form.n_kept(1), 1);
  EXPECT_EQ(form.n_kept(0), 0);
  parse_image_keep("0.1:knorm", form);
  EXPECT_EQ(form.n_kept(30), 3);  // 0.1 is a little more than a tenth
  EXPECT_EQ(form.complete().name(), "int4");
}

TEST(ImageKvForm, ErrorsListTheAcceptedForms) {
  EXPECT_EQ(error_of([] { parse_image_codec("in8"); }),
            "--cache-codec: expected exact, int8 or int4, found 'in8' (did you mean 'int8'?)");
  for (const char* text :
       {"", "0.2", "key_diff", "0:key_diff", "1:key_diff", "-0.5:knorm", "nan:knorm", "0.2x:knorm"}) {
    ImageKvForm form;
    EXPECT_NE(error_of([&] { parse_image_keep(text, form); }).find("expected SHARE:SCORER"), std::string::npos) << text;
  }
  ImageKvForm form;
  for (const char* text : {"0.2:snapkv", "0.2:"}) {
    EXPECT_NE(error_of([&] { parse_image_keep(text, form); }).find("key_diff, knorm and kvzip"), std::string::npos);
  }
  EXPECT_NE(error_of([&] { parse_image_keep("0.2:am", form); }).find("count twice"), std::string::npos);
}

}  // namespace
}  // namespace vlcache
