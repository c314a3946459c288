// The example of docs/adding-a-policy.md, which is compiled from that page.
#include <gtest/gtest.h>

#include <cmath>

#include "policy/fixed_slots_testing.h"
#include "policy/parameters.h"
#include "policy/parts.h"

namespace vlcache {

std::unique_ptr<const TokenScorer> make_fading(Parameters& p);

namespace {

TEST(AddingAPolicy, ExampleScoresAsDocumented) {
  Parameters parameters = Parameters::parse("fading:half=2");
  const std::unique_ptr<const TokenScorer> fading = make_fading(parameters);
  parameters.reject_unknown();
  EXPECT_EQ(fading->needs({}).window, 32);
  const std::vector<std::vector<int32_t>> five{{5}};
  const FixedSlots slots(five);
  std::vector<float> sums{16, 8, 4, 2, 1};
  LayerCapture layer;
  layer.window_sums = Tensor(sums.data(), DType::kF32, {1, 5});
  const PartInputs in{.slots = slots, .tokens = {}, .prompt = {.n_tokens = 5}, .capture = {&layer, 1}};
  std::vector<float> scores(5);
  fading->score_head(in, 0, 0, scores);
  const float root = std::sqrt(0.5f);
  EXPECT_FLOAT_EQ(scores[0], 4);
  EXPECT_FLOAT_EQ(scores[1], 4 * root);
  EXPECT_FLOAT_EQ(scores[4], 1);
}

}  // namespace
}  // namespace vlcache
