// Parsing of policies, and their choices against hand-computed tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "policy/fixed_slots_testing.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ParsePolicy, NamesAndParameters) {
  EXPECT_FALSE(parse_policy("none")->keeps_kv());
  EXPECT_TRUE(parse_policy("full")->keeps_kv());
  EXPECT_FALSE(parse_policy("full")->has_rule());
  EXPECT_EQ(parse_policy("full")->capacity(), 0);
  EXPECT_EQ(parse_policy("static")->capacity(), -1);
  EXPECT_EQ(parse_policy("static:capacity=128")->capacity(), 128);
  EXPECT_EQ(parse_policy("streaming:window=16,sinks=2")->pattern(), (AttentionPattern{2, 16}));
  EXPECT_EQ(parse_policy("post_vision+uniform")->name(), "post_vision+uniform");
  EXPECT_EQ(parse_policy("post_vision", "0.25")->name(), "post_vision+uniform");
}

std::string error_of(std::string_view text, std::string_view budget = "") {
  try {
    parse_policy(text, budget);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ParsePolicy, RejectsWhatItDoesNotKnow) {
  EXPECT_THAT(error_of("ful"), HasSubstr("there are full, none, static, streaming, and pairs SCORER+ALLOCATOR"));
  EXPECT_THAT(error_of("full:window=3"), HasSubstr("unknown parameter 'window'; it has none"));
  EXPECT_THAT(error_of("streaming:windows=3"), HasSubstr("it has sinks, window"));
  EXPECT_THAT(error_of("streaming:window=0"), HasSubstr("expected an integer from 1"));
  EXPECT_THAT(error_of("streaming:window=9x"), HasSubstr("found '9x'"));
  EXPECT_THAT(error_of("streaming:window"), HasSubstr("expected name:key=value"));
  EXPECT_THAT(error_of("streaming:window=3,window=4"), HasSubstr("given twice"));
  EXPECT_THAT(error_of("post_vision+unifrom"), HasSubstr("unknown allocator 'unifrom'"));
  EXPECT_THAT(error_of("post_vision:w=3+uniform"), HasSubstr("post_vision: unknown parameter 'w'"));
  EXPECT_THAT(error_of("full+uniform"), HasSubstr("unknown KV policy 'full'"));
  EXPECT_THAT(error_of("full", "0.1"), HasSubstr("takes no KV budget"));
  for (const char* budget : {"0", "-1", "1.5", "2.5", "x", "0.1x", "1e99", "nan"}) {
    EXPECT_THAT(error_of("post_vision+uniform", budget), HasSubstr("expected a share of the prompt")) << budget;
  }
}

TEST(StreamingRule, HidesWhatHasLeftTheWindow) {
  const PolicyPtr streaming = parse_policy("streaming:sinks=2,window=3");
  FixedSlots slots({{9, 5}, {1, 6}});
  streaming->on_step({.n_tokens = 5, .last_position = 4, .in_prompt = true}, slots);
  EXPECT_THAT(slots.hidden(0, 0), IsEmpty());
  EXPECT_THAT(slots.hidden(0, 1), IsEmpty());
  streaming->on_step({.n_tokens = 9, .last_position = 8, .in_prompt = true}, slots);
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(slots.hidden(1, 0), IsEmpty());
  EXPECT_THAT(slots.hidden(1, 1), ElementsAre(2, 3, 4, 5));
  const int hidden_before = slots.n_calls;
  streaming->on_step({.n_tokens = 10, .last_position = 9, .in_prompt = false}, slots);
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(2, 3, 4, 5, 6));
  EXPECT_EQ(slots.n_calls, hidden_before + 1) << "only what is not hidden yet (one head has slot 6)";
}

TEST(StreamingRule, KeepsEverythingAtTheLargestParameters) {
  const PolicyPtr streaming = parse_policy("streaming:sinks=2147483647,window=2147483647");
  FixedSlots slots({{9, 5}});
  streaming->on_step({.n_tokens = 9, .last_position = 8, .in_prompt = true}, slots);
  EXPECT_EQ(slots.n_calls, 0);
}

TEST(SelectSlots, TakesTheBestAndTheLast) {
  const std::vector<float> scores{5, 1, 4, 4, 9, 0, 0, 2};
  EXPECT_THAT(select_slots(scores, {}, 4, 1), ElementsAre(0, 3, 4, 7));  // of two equal scores the later slot
  EXPECT_THAT(select_slots(scores, {}, 4, 4), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(select_slots(scores, {}, 3, 0), ElementsAre(0, 3, 4));
  EXPECT_THAT(select_slots(scores, {}, 8, 1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(select_slots(scores, {}, 100, 10), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const float hidden = -std::numeric_limits<float>::infinity();
  const std::vector<float> bias{0, 0, 0, 0, hidden, 0, 0, hidden};
  EXPECT_THAT(select_slots(scores, bias, 3, 1), ElementsAre(0, 3, 6));
}

TEST(MaxPool, TakesTheLargestNeighbour) {
  std::vector<float> scores{0, 3, 0, 0, 0, 1};
  max_pool(scores, 3);
  EXPECT_THAT(scores, ElementsAre(3, 3, 3, 0, 1, 1));
}

TEST(PostVision, WindowIsTheTextBehindTheLastImage) {
  const PolicyPtr policy = parse_policy("post_vision+uniform");
  EXPECT_EQ(policy->needs({.n_tokens = 100, .n_vision = 40, .n_after_vision = 23}).window, 23);
  EXPECT_EQ(policy->needs({.n_tokens = 100, .n_vision = 40, .n_after_vision = 0}).window, 16);
  EXPECT_EQ(policy->needs({.n_tokens = 100, .n_vision = 0, .n_after_vision = 100}).window, 64);
  EXPECT_EQ(policy->needs({.n_tokens = 7, .n_vision = 0, .n_after_vision = 7}).window, 7);
}

// 20 slots, budget 0.25: 5 slots, of them max(1, floor(0.5 + 0.5)) = 1 recent; the sums of head 1 run the other way.
TEST(PostVision, KeepsTheBestByWindowSums) {
  const PolicyPtr policy = parse_policy("post_vision+uniform", "0.25");
  FixedSlots slots({{20, 20}});
  std::vector<float> sums(40);
  for (size_t i = 0; i < 20; ++i) {
    sums[i] = static_cast<float>(i * 7 % 20);
    sums[20 + i] = -sums[i];
  }
  Capture capture;
  capture.layers.resize(1);
  capture.layers[0].window_sums = Tensor(sums.data(), DType::kF32, {2, 20});
  const std::vector<TokenInfo> tokens(20);
  KeepPlan plan;
  ASSERT_TRUE(policy->plan({.slots = slots,
                            .tokens = tokens,
                            .prompt = {.n_tokens = 20, .n_vision = 10, .n_after_vision = 5},
                            .capture = capture},
                           plan));
  // i * 7 mod 20: 19 at 17, 18 at 14, 17 at 11, 16 at 8; slot 19 is recent.
  EXPECT_THAT(plan.layers[0][0].keep, ElementsAre(8, 11, 14, 17, 19));
  EXPECT_THAT(plan.layers[0][1].keep, ElementsAre(0, 3, 6, 9, 19));
}

}  // namespace
}  // namespace vlcache
