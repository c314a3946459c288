// Parsing of policies, and their choices against hand-computed tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "policy/fixed_slots_testing.h"
#include "policy/parts.h"
#include "policy/registry.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

std::string policy_error(std::string_view text, std::string_view budget = "") {
  return error_of([&] { parse_policy(text, budget); });
}

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
  EXPECT_EQ(parse_policy("")->name(), "full");
  EXPECT_EQ(parse_policy("", "0.25")->name(), parse_policy("auto")->name());
  EXPECT_EQ(parse_policy("auto", "512MiB")->name(), "pointer@answer+global");
  EXPECT_EQ(parse_policy("", "error=0.1")->name(), "pointer@answer+per_error");
  EXPECT_EQ(parse_policy("", "threshold=0.1")->name(), "pointer@answer");
  EXPECT_EQ(parse_policy("auto")->acts_after_tokens(), 64);
  EXPECT_EQ(parse_policy("pointer@answer:ahead=9")->acts_after_tokens(), 9);
  EXPECT_EQ(parse_policy("pointer@draft:emit=1")->acts_after_tokens(), 64);
  for (const char* text : {"pointer@draft", "pointer:ahead=9", "pointer:emit=1", "snapkv:ahead=9", "full"}) {
    EXPECT_EQ(parse_policy(text)->acts_after_tokens(), 0) << text;
  }
  EXPECT_EQ(parse_policy("vl-cache")->name(), "post_vision+vl-cache");
  EXPECT_EQ(parse_policy("vl-cache@paper:p=0.02")->name(), "post_vision@paper+vl-cache:p=0.02");
  EXPECT_EQ(parse_policy("pyramidkv:w=16,beta=10")->name(), "snapkv:w=16+pyramid:beta=10");
  EXPECT_EQ(parse_policy("snapkv", "error=0.1")->name(), "snapkv+per_error");
  EXPECT_EQ(parse_policy("snapkv", "threshold=0.1")->name(), "snapkv");
  EXPECT_EQ(parse_policy("streaming", "0.1")->name(), "streaming+uniform");
  EXPECT_EQ(parse_policy("streaming@kvpress")->name(), "streaming@kvpress+uniform");
  EXPECT_EQ(parse_policy("streaming")->name(), "streaming");
  EXPECT_EQ(parse_policy("vl-cache/h2o:recent=0.3")->name(), "post_vision+vl-cache/h2o:recent=0.3");
  EXPECT_EQ(parse_policy("snapkv/none")->name(), "snapkv+uniform");
  EXPECT_EQ(parse_policy("kvzip:piece=64")->name(), "kvzip:piece=64+global");
  EXPECT_EQ(parse_policy("kvzip@kvpress")->name(), "kvzip@kvpress+global");
  EXPECT_EQ(parse_policy("kvzip+pyramid/h2o")->name(), "kvzip+pyramid/h2o");
  EXPECT_EQ(parse_policy("kvzip", "error=0.1")->name(), "kvzip+per_error");
  EXPECT_FALSE(parse_policy("snapkv/streaming")->wants_scores());
  EXPECT_TRUE(parse_policy("snapkv+pyramid/tova")->wants_scores());
}

// The policy and the allocator of VL-Cache had the program's name once.
TEST(ParsePolicy, ReadsNamesOfEarlierReleases) {
  for (const auto& [earlier, present] : std::vector<std::pair<std::string, std::string>>{
           {"vlcache", "vl-cache"},
           {"vlcache@paper", "vl-cache@paper"},
           {"vlcache:p=0.02", "vl-cache:p=0.02"},
           {"vlcache@effivlm:p=0.02/h2o:recent=0.3", "vl-cache@effivlm:p=0.02/h2o:recent=0.3"},
           {"vlcache/none", "vl-cache/none"},
           {"post_vision+vlcache", "post_vision+vl-cache"},
           {"snapkv:w=8+vlcache:p=0.02/tova", "snapkv:w=8+vl-cache:p=0.02/tova"},
           {"snapkv+vlcache@paper", "snapkv+vl-cache@paper"}}) {
    EXPECT_EQ(with_present_names(earlier), present);
    EXPECT_EQ(with_present_names(present), present);
    EXPECT_EQ(parse_policy(earlier, "0.2")->name(), parse_policy(present, "0.2")->name());
    EXPECT_TRUE(takes_budget(earlier)) << earlier;
  }
  EXPECT_EQ(parse_policy("snapkv+vlcache/tova")->name(), "snapkv+vl-cache/tova");
  for (const char* other : {"", "auto", "full", "vlcache2", "snapkv/vlcache", "duo:heads=a+vlcache",
                            "duo:heads=vlcache", "snapkv:vlcache=2", "snapkv@vlcache"}) {
    EXPECT_EQ(with_present_names(other), other);
  }
  EXPECT_THAT(policy_error("vlcache+uniform"), HasSubstr("'vl-cache' stands for post_vision+vl-cache"));
  EXPECT_THAT(policy_error("vlcache:q=1"), HasSubstr("vl-cache: unknown parameter 'q'"));
  for (const char* unknown : {"vl-cach", "vlcachee", "vl_cache", "snapkv+vlcachee"}) {
    EXPECT_THAT(policy_error(unknown),
                AllOf(HasSubstr("(did you mean 'vl-cache'?)"), HasSubstr(" vl-cache, "), Not(HasSubstr(" vlcache,"))));
  }
}

TEST(ParsePolicy, DraftIsTheShortNameOfPointerWithADraft) {
  const char* const kLong = "pointer@draft+global";
  EXPECT_EQ(parse_policy("draft", "0.1")->name(), kLong);
  EXPECT_EQ(parse_policy("draft")->name(), kLong);
  EXPECT_EQ(parse_policy("draft:ahead=8,fit=0", "64MiB")->name(), "pointer@draft:ahead=8,fit=0+global");
  EXPECT_EQ(parse_policy("draft/h2o:recent=0.3", "200")->name(), "pointer@draft+global/h2o:recent=0.3");
  EXPECT_EQ(parse_policy("draft")->acts_after_tokens(), 0);
  EXPECT_TRUE(takes_budget("draft"));
  EXPECT_THAT(policy_error("draft+uniform"),
              HasSubstr("'draft' stands for pointer@draft+global and takes no other allocator"));
  EXPECT_THAT(policy_error("draft@answer"),
              HasSubstr("'draft' stands for pointer@draft+global and accepts no other preset"));
  EXPECT_THAT(policy_error("draft:beta=2"), HasSubstr("draft: unknown parameter 'beta'"));
  EXPECT_THAT(policy_error("draft", "threshold=0.1"), HasSubstr("no allocator goes with it"));
  EXPECT_THAT(policy_error("draft", "error=0.1"), HasSubstr("goes with the allocator per_error, not with global"));
  EXPECT_THAT(policy_error("drat"), HasSubstr("did you mean 'draft'?"));
}

// Shapes of text alone: a share of 70 tokens, a number of slots, a window; a budget of everything has no window.
TEST(ParsePolicy, RecomputedWindows) {
  const PromptShape prompt{.n_tokens = 70, .n_vision = 0, .n_after_vision = 70};
  const auto window = [&](std::string_view text, std::string_view budget) {
    return parse_policy(text, budget)->recompute_window(prompt);
  };
  EXPECT_FALSE(parse_policy("window_recompute")->keeps_kv());
  EXPECT_EQ(window("window_recompute", ""), 7);
  EXPECT_EQ(window("window_recompute+uniform", "0.35"), 25);  // 24.5
  EXPECT_EQ(window("window_recompute", "500"), 500);
  EXPECT_EQ(window("window_recompute:window=12", ""), 12);
  EXPECT_EQ(window("window_recompute", "1"), 0);
  EXPECT_EQ(window("none", ""), 0);
  EXPECT_EQ(parse_policy("window_recompute", "0.35")->n_seen(prompt), 25);
  EXPECT_EQ(parse_policy("window_recompute", "500")->n_seen(prompt), 70);
  EXPECT_TRUE(takes_budget("window_recompute"));
  EXPECT_FALSE(takes_budget("window_recompute:window=12"));
  EXPECT_EQ(parse_policy("window_recompute:window=12")->name(), "window_recompute:window=12");
}

TEST(ParsePolicy, RejectsUnknownNamesAndValues) {
  EXPECT_THAT(policy_error("ful"),
              HasSubstr("unknown KV policy 'ful' (did you mean 'full'?); there are auto, draft, vl-cache, "));
  EXPECT_THAT(policy_error("ful"), HasSubstr(", dilated with a budget, and full, none, static, "));
  EXPECT_THAT(policy_error("aut"), HasSubstr("unknown KV policy 'aut' (did you mean 'auto'?)"));
  EXPECT_THAT(policy_error("snapk"), HasSubstr("did you mean 'snapkv'?"));
  EXPECT_THAT(policy_error("snapkv@kvpres"), HasSubstr("snapkv: unknown preset 'kvpres' (did you mean 'kvpress'?)"));
  EXPECT_THAT(policy_error("snapkv@"), HasSubstr("expected the name of a preset after '@'"));
  EXPECT_THAT(policy_error("snapkv:k=4"), HasSubstr("snapkv: k: expected an odd integer, found '4'"));
  EXPECT_THAT(policy_error("snapkv:pool=min"), HasSubstr("expected one of max, mean, found 'min'"));
  EXPECT_THAT(policy_error("pyramidkv:beta=0.5"), HasSubstr("beta: expected a number from 1"));
  EXPECT_THAT(policy_error("pyramidkv:gamma=2"), HasSubstr("unknown parameter 'gamma'"));
  EXPECT_THAT(policy_error("vl-cache+uniform"),
              HasSubstr("stands for post_vision+vl-cache and takes no other allocator"));
  EXPECT_THAT(policy_error("snapkv/"), HasSubstr("expected a decode rule after '/'"));
  EXPECT_THAT(policy_error("snapkv/h20"), HasSubstr("unknown decode rule 'h20' (did you mean 'h2o'?)"));
  EXPECT_THAT(policy_error("snapkv/h2o:recent=2"), HasSubstr("h2o: recent: expected a number from 0 to 1"));
  EXPECT_THAT(policy_error("full/h2o"), HasSubstr("'full' takes no decode rule"));
  EXPECT_THAT(policy_error("window+ada_head"), HasSubstr("looks at places, not at attention"));
  EXPECT_THAT(policy_error("am:on=replay,ahead=1"), HasSubstr("am: ahead: expected an integer from 0 to 0"));
  EXPECT_THAT(policy_error("snapkv+"), HasSubstr("expected an allocator after '+'"));
  EXPECT_THAT(policy_error("snapkv+per_error", "0.1"),
              HasSubstr("per_error: expected a KV budget of the form error=0.05"));
  EXPECT_THAT(policy_error("snapkv+pyramid", "error=0.1"),
              HasSubstr("goes with the allocator per_error, not with pyramid"));
  EXPECT_THAT(policy_error("snapkv+pyramid", "threshold=0.1"), HasSubstr("no allocator goes with it"));
  EXPECT_THAT(policy_error("window_recompute+pyramid"), HasSubstr("in all layers or in none"));
  EXPECT_THAT(policy_error("window_recompute/h2o"), HasSubstr("takes no decode rule"));
  EXPECT_THAT(policy_error("window_recompute", "1MiB"),
              HasSubstr("expected a share of the prompt or a number of slots"));
  EXPECT_THAT(policy_error("window_recompute:window=9", "0.1"),
              HasSubstr("a KV budget sets window; give one of the two"));
  EXPECT_THAT(policy_error("window_recompute:w=9"), HasSubstr("unknown parameter 'w'"));
  EXPECT_THAT(policy_error("hired:alpha=2"), HasSubstr("alpha: expected a number from 0 to 1"));
  EXPECT_THAT(policy_error("hired+vl-cache"), HasSubstr("goes with uniform, not with vl-cache"));
  EXPECT_THAT(policy_error("hired", "error=0.1"),
              HasSubstr("expected a share of the prompt or a number of slots as KV budget"));
  EXPECT_THAT(policy_error("full:window=3"), HasSubstr("unknown parameter 'window'; it has none"));
  EXPECT_THAT(policy_error("streaming:windows=3"),
              HasSubstr("unknown parameter 'windows' (did you mean 'window'?); it has sinks, window"));
  EXPECT_THAT(policy_error("streaming:window=0"), HasSubstr("expected an integer from 1"));
  EXPECT_THAT(policy_error("streaming:window=9x"), HasSubstr("found '9x'"));
  EXPECT_THAT(policy_error("streaming:window"), HasSubstr("expected name:key=value"));
  EXPECT_THAT(policy_error("streaming:window=3,window=4"), HasSubstr("given twice"));
  EXPECT_THAT(policy_error("post_vision+unifrom"), HasSubstr("unknown allocator 'unifrom'"));
  EXPECT_THAT(policy_error("post_vision:w=3+uniform"), HasSubstr("post_vision: unknown parameter 'w'"));
  EXPECT_THAT(policy_error("full+uniform"), HasSubstr("'full' takes no allocator"));
  EXPECT_THAT(policy_error("full", "0.1"), HasSubstr("'full' takes no KV budget"));
  for (const char* name : {"fastgen", "razor", "duo"}) {
    EXPECT_THAT(policy_error(name, "0.1"), HasSubstr("takes no KV budget"));
    EXPECT_THAT(policy_error(std::string(name) + "+uniform"), HasSubstr("takes no allocator"));
    EXPECT_THAT(policy_error(std::string(name) + "/h2o"), HasSubstr("takes no decode rule"));
  }
  EXPECT_THAT(policy_error("fastgen:t=2"), HasSubstr("fastgen: t: expected a number from 0.01 to 1"));
  for (const char* budget : {"0", "-1", "1.5", "2.5", "x", "0.1x", "1e99", "nan", "error=0", "error=1", "error=nan",
                             "threshold=", "5 parsecs", "0MiB", "0%", "101%", "%"}) {
    EXPECT_THAT(policy_error("post_vision+uniform", budget), HasSubstr("expected a share of the prompt")) << budget;
  }
}

// An image of two tiles side by side, 2 x 2 patches each, and an overview of 2 x 2 before them: tokens 0-3, the line
// 4-7 with its newline 8, the line 9-12 with 13. Of the overview's patches the left ones lie in tile 1, the right ones
// in tile 2. The early layer attends to 0 and 2, so tile 1 gets all that the overview's half leaves.
TEST(Hired, FollowsTheHandComputedTable) {
  const int32_t kEnd = ImageTokens::kNewline;
  const ImageTokens image{.n_tiles = 3,
                          .overview = 0,
                          .tile = {0, 0, 0, 0, 1, 1, 2, 2, kEnd, 1, 1, 2, 2, kEnd},
                          .larger = {1, 2, 1, 2, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
                          .attention = {{.4f, .1f, .3f, .2f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                        {.1f, .4f, .2f, .3f, .5f, .1f, .9f, .2f, 0, .6f, .7f, .05f, .8f, 0}}};
  const PromptShape prompt{.n_tokens = 20, .n_vision = 14, .n_after_vision = 3};
  const auto kept = [&](const char* budget, std::string_view policy = "hired") {
    return parse_policy(policy, budget)->select({&image, 1}, prompt, 0)[0];
  };
  // 6 of text. One token: a patch of a tile would need its newline.
  EXPECT_THAT(kept("7"), ElementsAre(1));
  // 5: of 5 patches 2 fall to the overview, 3 to tile 1: 4, 9, 10 and two newlines are too many. Of 4: 2 and 2.
  EXPECT_THAT(kept("11"), ElementsAre(1, 3, 9, 10, 13));
  // 6: 5 patches need 7; 4 need 5, and the remaining one goes to 12, the best on a line that is already kept.
  EXPECT_THAT(kept("12"), ElementsAre(1, 3, 9, 10, 12, 13));
  EXPECT_THAT(kept("0.65"), ElementsAre(1, 3, 4, 8, 9, 10, 13));  // 13 of 20
  // All for the tiles, of which each shows two of the four patches that count: 3 and 2, on both lines.
  EXPECT_THAT(kept("13", "hired:alpha=0"), ElementsAre(4, 6, 8, 9, 10, 12, 13));
  EXPECT_THAT(kept("11", "hired:alpha=1"), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(kept("19").size(), 13u);
  // Two images share in proportion; one chosen earlier counts.
  const std::vector<ImageTokens> two{image, image};
  const PromptShape both{.n_tokens = 34, .n_vision = 28, .n_after_vision = 3};
  const auto halves = parse_policy("hired", "16")->select(two, both, 0);
  EXPECT_THAT(halves[0], ElementsAre(1, 3, 9, 10, 13));
  EXPECT_EQ(halves[0], halves[1]);
  EXPECT_THAT(parse_policy("hired", "16")->select({&image, 1}, both, 5)[0], ElementsAre(1, 3, 9, 10, 13));
  EXPECT_THROW(parse_policy("hired", "11")->select({&image, 1}, both, 5), Error);
  EXPECT_EQ(parse_policy("hired", "11")->select({}, both, 20).size(), 0u) << "nothing new to choose from";
}

TEST(ParsePolicy, MethodsThatDropRows) {
  EXPECT_EQ(parse_policy("fastv")->name(), "fastv");
  EXPECT_EQ(parse_policy("fastv:k=3,r=0.25")->name(), "fastv:k=3,r=0.25");
  EXPECT_EQ(parse_policy("fastv/tova", "0.7")->name(), "fastv/tova");
  EXPECT_FALSE(parse_policy("fastv")->has_rule());
  EXPECT_TRUE(parse_policy("pyramid_infer")->wants_scores());
  EXPECT_EQ(parse_policy("pyramid_infer/none")->name(), "pyramid_infer/none");
  EXPECT_FALSE(parse_policy("pyramid_infer/none")->has_rule());
  EXPECT_EQ(parse_policy("snapkv/refresh:every=8", "0.1")->name(), "snapkv+uniform/refresh:every=8");
  EXPECT_TRUE(takes_budget("fastv"));
  EXPECT_THAT(policy_error("fastvv"), HasSubstr("did you mean 'fastv'?"));
  EXPECT_THAT(policy_error("fastv:k=0"), HasSubstr("fastv: k: expected an integer from 1"));
  EXPECT_THAT(policy_error("fastv:r=1.5"), HasSubstr("fastv: r: expected a number from 0 to 1"));
  EXPECT_THAT(policy_error("fastv:w=1"), HasSubstr("fastv: unknown parameter 'w'"));
  EXPECT_THAT(policy_error("fastv@paper"), HasSubstr("unknown preset 'paper'"));
  EXPECT_THAT(policy_error("fastv:r=0.3", "0.5"), HasSubstr("a KV budget sets r; give one of the two"));
  EXPECT_THAT(policy_error("pyramid_infer:decay=0.3", "0.5"), HasSubstr("a KV budget sets decay"));
  EXPECT_THAT(policy_error("fastv+uniform", "0.5"), HasSubstr("takes no allocator"));
  EXPECT_THAT(policy_error("fastv/h2o"), HasSubstr("the decode rule 'h2o' wants the attention of all prompt tokens"));
  for (const char* budget : {"error=0.1", "threshold=0.1"}) {
    EXPECT_THAT(policy_error("pyramid_infer", budget), HasSubstr("expected a KV budget of slots"));
  }
  EXPECT_THAT(policy_error("fastv", "0"), HasSubstr("expected a share of the prompt"));
}

TEST(StreamingRule, HidesSlotsOutsideTheWindow) {
  const PolicyPtr streaming = parse_policy("streaming:sinks=2,window=3");
  FixedSlots slots({{9, 5}, {1, 6}});
  streaming->on_step({.n_tokens = 5, .in_prompt = true}, slots);
  EXPECT_THAT(slots.hidden(0, 0), IsEmpty());
  EXPECT_THAT(slots.hidden(0, 1), IsEmpty());
  streaming->on_step({.n_tokens = 9, .in_prompt = true}, slots);
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(slots.hidden(1, 0), IsEmpty());
  EXPECT_THAT(slots.hidden(1, 1), ElementsAre(2, 3, 4, 5));
  const int hidden_before = slots.n_calls;
  streaming->on_step({.n_tokens = 10, .in_prompt = false}, slots);
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(2, 3, 4, 5, 6));
  EXPECT_EQ(slots.n_calls, hidden_before + 1) << "only what is not hidden yet (one head has slot 6)";
}

TEST(StreamingRule, KeepsEverythingAtTheLargestParameters) {
  const PolicyPtr streaming = parse_policy("streaming:sinks=2147483647,window=2147483647");
  FixedSlots slots({{9, 5}});
  streaming->on_step({.n_tokens = 9, .in_prompt = true}, slots);
  EXPECT_EQ(slots.n_calls, 0);
}

TEST(SelectSlots, SelectsTheBestAndTheLast) {
  const std::vector<float> scores{5, 1, 4, 4, 9, 0, 0, 2};
  EXPECT_THAT(select_slots(scores, 4, {.n_last = 1}), ElementsAre(0, 3, 4, 7));  // of two equal scores the later slot
  EXPECT_THAT(select_slots(scores, 4, {.n_last = 4}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(select_slots(scores, 4, {.n_first = 2, .n_last = 1}), ElementsAre(0, 1, 4, 7));
  EXPECT_THAT(select_slots(scores, 3, {}), ElementsAre(0, 3, 4));
  EXPECT_THAT(select_slots(scores, 8, {.n_last = 1}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(select_slots(scores, 100, {.n_last = 10}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THROW(select_slots(scores, 3, {.n_first = 1, .n_last = 3}), Error);
  const float gone = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(select_slots(std::vector<float>{5, 1, 4, 4, gone, 0, 0, gone}, 3, {.n_last = 1}), ElementsAre(0, 3, 6));
  EXPECT_THAT(ranked_slots(std::vector<float>{5, 1, 4, 4, gone, 0, 0, gone}, {.n_last = 1}),
              ElementsAre(6, 0, 3, 2, 1, 5));
  const std::vector<int32_t> all = ranked_slots(scores, {.n_last = 1});
  const std::vector<int32_t> three = ranked_slots(scores, {.n_last = 1}, 3);
  EXPECT_THAT(std::span(three).first(3), testing::ElementsAreArray(std::vector<int32_t>(all.begin(), all.begin() + 3)));
  EXPECT_THAT(three, testing::UnorderedElementsAreArray(all));
}

// Twelve slots, of which a window of 6 leaves 7 to 11. Before it passes them, the first two are protected; afterwards
// no other slots are.
TEST(SelectSlots, ProtectsThePromptsFirstTokensAlone) {
  std::vector<float> max{0, 0, 9, 0, 0, 0, 0, 1, 2, 6, 5, 4};
  Capture capture;
  capture.layers.resize(1);
  capture.layers[0].window_max = Tensor(max.data(), DType::kF32, {1, 12});
  capture.layers[0].window_sums = capture.layers[0].window_max;
  const Capture* const captures[] = {&capture};
  const std::vector<TokenInfo> tokens(12);
  const auto kept = [&](std::string_view policy, std::string_view budget, int32_t window) {
    FixedSlots slots(std::vector<std::vector<int32_t>>{{12}});
    slots.sliding_window = window;
    KeepPlan plan;
    parse_policy(policy, budget)
        ->plan(
            {.slots = slots, .tokens = tokens, .prompt = {.n_tokens = 12, .n_after_vision = 12}, .captures = captures},
            plan);
    return plan.layers[0][0].keep;
  };
  for (const char* allocator : {"+uniform", "+global", "+ada_head@kvpress"}) {
    SCOPED_TRACE(allocator);
    const std::string kvzip = std::string("kvzip@kvpress:sinks=2") + allocator;
    EXPECT_THAT(kept(kvzip, "3", 0), ElementsAre(0, 1, 2));
    EXPECT_THAT(kept(kvzip, "3", 6), ElementsAre(9, 10, 11));
  }
  EXPECT_THAT(kept("streaming:sinks=2", "3", 0), ElementsAre(0, 1, 11));
  EXPECT_THAT(kept("streaming:sinks=2", "3", 6), ElementsAre(9, 10, 11));
  FixedSlots slots(std::vector<std::vector<int32_t>>{{12}});
  EXPECT_EQ(Protected{.n_first = 2}.in_head(slots, 0, 0).n_first, 2);
  slots.hide(0, 0, 0);
  EXPECT_EQ(Protected{.n_first = 2}.in_head(slots, 0, 0).n_first, 1);
  slots.sliding_window = 11;
  EXPECT_EQ(Protected{.n_first = 2}.in_head(slots, 0, 0).n_first, 0);
}

// A query head whose sink outweighs all slots adds nothing to the mean over the group: the order is the other's.
TEST(ExpectedAttention, CountsSinkLogits) {
  const FixedSlots slots(std::vector<std::vector<int32_t>>{{30}});
  const std::vector<TokenInfo> tokens(30);
  std::vector<float> mean{0.3f, -0.2f, 0, 0, -0.3f, 0.5f, 0, 0}, covariance(32, 0.0f);
  const auto kept = [&](std::vector<float> sinks) {
    Capture capture;
    capture.layers.resize(1);
    capture.layers[0].future_mean = Tensor(mean.data(), DType::kF32, {2, 4});
    capture.layers[0].future_covariance = Tensor(covariance.data(), DType::kF32, {2, 16});
    capture.layers[0].sink_logits = std::move(sinks);
    const Capture* const captures[] = {&capture};
    KeepPlan plan;
    parse_policy("expected_attention@kvpress:sinks=0", "5")
        ->plan(
            {.slots = slots, .tokens = tokens, .prompt = {.n_tokens = 30, .n_after_vision = 30}, .captures = captures},
            plan);
    return plan.layers[0][0].keep;
  };
  const std::vector<int32_t> first = kept({0.0f, 1e4f}), second = kept({1e4f, 0.0f});
  EXPECT_NE(first, second);
  std::copy_n(mean.begin(), 4, mean.begin() + 4);
  EXPECT_EQ(kept({}), first);
}

// Two layers of a head, ten slots, the question of one token.
TEST(Pointer, KeepsPointedSlotsAndTheirSuccessors) {
  const FixedSlots slots({{10}, {10}});
  std::vector<std::vector<float>> most{{0.0f, 0.1f, 0.9f, 0.0f, 0.0f, 0.3f, 0.4f, 0.0f, 0.0f, 0.0f},
                                       {0.6f, 0.0f, 0.2f, 0.1f, 0.0f, 0.0f, 0.0f, 0.8f, 0.0f, 0.0f}};
  const std::vector<TokenInfo> tokens(10);
  const PromptShape prompt{.n_tokens = 10, .n_vision = 9, .n_after_vision = 1};
  const auto kept = [&](std::string_view name) {
    const PolicyPtr policy = parse_policy(name, "5");
    Capture capture;
    capture.request = policy->needs(prompt).at(0);
    for (std::vector<float>& row : most) {
      capture.layers.emplace_back().window_max = Tensor(row.data(), DType::kF32, {1, 10});
    }
    const std::vector<const Capture*> captures{&capture};
    KeepPlan plan;
    EXPECT_TRUE(policy->plan({.slots = slots, .tokens = tokens, .prompt = prompt, .captures = captures}, plan));
    return std::pair(plan.layers[0][0].keep, plan.layers[1][0].keep);
  };
  // The largest of both layers is .6 .1 .9 .1 0 .3 .4 .8 0 0, reached from one before .6 .6 .9 .9 .1 .3 .4 .8 .8 0.
  EXPECT_THAT(kept("pointer:reach=0"), Pair(ElementsAre(0, 2, 6, 7, 9), ElementsAre(0, 2, 6, 7, 9)));
  EXPECT_THAT(kept("pointer:reach=1"), Pair(ElementsAre(2, 3, 7, 8, 9), ElementsAre(2, 3, 7, 8, 9)));
  // Half of it the layer's own: .3 .35 .9 .45 .05 .3 .4 .4 .4 0 and .6 .3 .55 .5 .05 .15 .2 .8 .4 0.
  EXPECT_THAT(kept("pointer:reach=1,own=0.5"), Pair(ElementsAre(2, 3, 7, 8, 9), ElementsAre(0, 2, 3, 7, 9)));
  EXPECT_THAT(kept("pointer:own=1"), Pair(ElementsAre(1, 2, 5, 6, 9), ElementsAre(0, 2, 3, 7, 9)));
}

TEST(MaxPool, TakesTheLargestNeighbour) {
  std::vector<float> scores{0, 3, 0, 0, 0, 1};
  max_pool(scores, 3);
  EXPECT_THAT(scores, ElementsAre(3, 3, 3, 0, 1, 1));
}

TEST(MeanPool, CountsItsPadding) {
  std::vector<float> scores{0, 3, 0, 0, 0, 6};
  mean_pool(scores, 3);
  EXPECT_THAT(scores, ElementsAre(1, 1, 1, 0, 2, 2));
}

TEST(PostVision, WindowIsTheTextAfterTheLastImage) {
  const PolicyPtr policy = parse_policy("post_vision+uniform");
  EXPECT_EQ(policy->needs({.n_tokens = 100, .n_vision = 40, .n_after_vision = 23}).at(0).window, 23);
  EXPECT_EQ(policy->needs({.n_tokens = 100, .n_vision = 40, .n_after_vision = 0}).at(0).window, 16);
  EXPECT_EQ(policy->needs({.n_tokens = 100, .n_vision = 0, .n_after_vision = 100}).at(0).window, 64);
  EXPECT_EQ(policy->needs({.n_tokens = 7, .n_vision = 0, .n_after_vision = 7}).at(0).window, 7);
}

// Ten slots with the values 4, 1, 0, 0, 9, 5, 3, 0, 0, 2; begin and n_recent spare the first and the last.
TEST(HideUntil, SparesTheFirstAndTheRecent) {
  const auto hidden = [](int32_t n_left, int32_t begin, int32_t n_recent) {
    FixedSlots slots(std::vector<std::vector<int32_t>>{{10}});
    const float values[] = {4, 1, 0, 0, 9, 5, 3, 0, 0, 2};
    std::ranges::copy(values, slots.plane(0, 0, 0).begin());
    hide_until(slots, 0, 0, n_left, begin, n_recent);
    return slots.hidden(0, 0);
  };
  EXPECT_THAT(hidden(10, 2, 2), IsEmpty());
  EXPECT_THAT(hidden(9, 2, 2), ElementsAre(2));  // of equals the earliest
  EXPECT_THAT(hidden(9, 4, 2), ElementsAre(7));
  EXPECT_THAT(hidden(9, 8, 1), ElementsAre(8));
  EXPECT_THAT(hidden(9, 8, 2), IsEmpty());
  EXPECT_THAT(hidden(6, 2, 2), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(hidden(6, 2, 1), ElementsAre(2, 3, 7, 8));
  EXPECT_THAT(hidden(1, 2, 2), ElementsAre(2, 3, 4, 5, 6, 7));
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
  const Capture* const captures[] = {&capture};
  capture.layers.resize(1);
  capture.layers[0].window_sums = Tensor(sums.data(), DType::kF32, {2, 20});
  const std::vector<TokenInfo> tokens(20);
  KeepPlan plan;
  ASSERT_TRUE(policy->plan({.slots = slots,
                            .tokens = tokens,
                            .prompt = {.n_tokens = 20, .n_vision = 10, .n_after_vision = 5},
                            .captures = captures},
                           plan));
  // i * 7 mod 20: 19 at 17, 18 at 14, 17 at 11, 16 at 8; slot 19 is recent.
  EXPECT_THAT(plan.layers[0][0].keep, ElementsAre(8, 11, 14, 17, 19));
  EXPECT_THAT(plan.layers[0][1].keep, ElementsAre(0, 3, 6, 9, 19));
}

// Four layers, two heads of 100 slots, a window of 10 rows that see 1000 entries a head. Entries that are not small:
// 500, 250, 200 and 50 of 1000, so 1 - gamma = 0.5, 0.25, 0.2, 0.05 and Z = 1. At alpha = 0.1, alpha L = 0.4:
// beta = 0.2, 0.1, 0.08, 0.02 of 100 slots: 20, 10, 8, 2. At alpha = 0.6: beta = 1.2 -> 1, 0.6, 0.48, 0.12; the paper
// stops there (100, 60, 48, 12 = 220), ours deals the missing 20 to the others, 1.25 : 1 : 0.25 of 140 -> 70, 56, 14.
TEST(VlCacheBudgets, FollowTheHandComputedTable) {
  constexpr float kLarge[] = {500, 250, 200, 50};
  std::vector<std::vector<float>> below(4, std::vector<float>(200)), seen = below, sums = below;
  Capture capture;
  capture.layers.resize(4);
  for (size_t l = 0; l < 4; ++l) {
    for (size_t i = 0; i < 200; ++i) {
      seen[l][i] = 10;
      below[l][i] = 10 - kLarge[l] / 100;
      sums[l][i] = static_cast<float>(i % 37);
    }
    capture.layers[l].below_counts = Tensor(below[l].data(), DType::kF32, {2, 100});
    capture.layers[l].seen_counts = Tensor(seen[l].data(), DType::kF32, {2, 100});
    capture.layers[l].window_sums = Tensor(sums[l].data(), DType::kF32, {2, 100});
  }
  const Capture* const captures[] = {&capture};
  const FixedSlots slots({{100, 100}, {100, 100}, {100, 100}, {100, 100}});
  const std::vector<TokenInfo> tokens(100);
  const auto counts = [&](std::string_view policy, std::string_view budget) {
    KeepPlan plan;
    parse_policy(policy, budget)
        ->plan({.slots = slots,
                .tokens = tokens,
                .prompt = {.n_tokens = 100, .n_vision = 80, .n_after_vision = 10},
                .captures = captures},
               plan);
    std::vector<size_t> k;
    for (const auto& layer : plan.layers) {
      EXPECT_EQ(layer[0].keep.size(), layer[1].keep.size());
      k.push_back(layer[0].keep.size());
    }
    return k;
  };
  EXPECT_THAT(counts("vl-cache@paper", "0.1"), ElementsAre(20, 10, 8, 2));
  EXPECT_THAT(counts("vl-cache", "0.1"), ElementsAre(20, 10, 8, 2));
  EXPECT_THAT(counts("vl-cache@paper", "0.6"), ElementsAre(100, 60, 48, 12));
  EXPECT_THAT(counts("vl-cache", "0.6"), ElementsAre(100, 70, 56, 14));
  EXPECT_THAT(counts("vlcache", "0.6"), ElementsAre(100, 70, 56, 14)) << "by its earlier name";
  EXPECT_THAT(counts("vlcache@paper", "0.6"), ElementsAre(100, 60, 48, 12));
  EXPECT_THAT(counts("post_vision+vlcache", "0.6"), ElementsAre(100, 70, 56, 14));
  EXPECT_THAT(counts("vl-cache@paper", "0.02"), ElementsAre(4, 2, 2, 1));  // 0.04, 0.02, 0.016, 0.004 -> 0.01
}

// Three heads of 10 slots, 3 on average: 9 in all. Each keeps its last (a tenth, at least one) and its first 2 sinks,
// which is all of the budget; with none of those sinks 6 are dealt by rank: 9, 8, 7 of head 0, 6 of head 1 and, of the
// equal 5 in slots 4 and 3 of head 2, both.
TEST(GlobalBudget, GoesToTheHeadsWithTheBestScores) {
  std::vector<float> max[2] = {std::vector<float>(20), std::vector<float>(10)};
  max[0][1] = 9;
  max[0][2] = 8;
  max[0][8] = 7;
  max[0][10 + 5] = 6;
  max[1][4] = max[1][3] = 5;
  Capture capture;
  capture.layers.resize(2);
  capture.layers[0].window_max = Tensor(max[0].data(), DType::kF32, {2, 10});
  capture.layers[1].window_max = Tensor(max[1].data(), DType::kF32, {1, 10});
  const Capture* const captures[] = {&capture};
  const FixedSlots slots({{10, 10}, {10}});
  const std::vector<TokenInfo> tokens(10);
  const auto kept = [&](std::string_view policy) {
    KeepPlan plan;
    parse_policy(policy, "0.3")
        ->plan(
            {.slots = slots, .tokens = tokens, .prompt = {.n_tokens = 10, .n_after_vision = 10}, .captures = captures},
            plan);
    return std::vector{plan.layers[0][0].keep, plan.layers[0][1].keep, plan.layers[1][0].keep};
  };
  EXPECT_THAT(kept("kvzip:sinks=0"), ElementsAre(ElementsAre(1, 2, 8, 9), ElementsAre(5, 9), ElementsAre(3, 4, 9)));
  EXPECT_THAT(kept("kvzip:sinks=2"), ElementsAre(ElementsAre(0, 1, 9), ElementsAre(0, 1, 9), ElementsAre(0, 1, 9)));
  // kvpress: 30 slots, floor(30 * 0.7) are evicted; a head keeps one at least.
  EXPECT_THAT(kept("kvzip@kvpress:sinks=1"),
              ElementsAre(ElementsAre(0, 1, 2, 8), ElementsAre(0, 5), ElementsAre(0, 3, 4)));
}

// A prompt of 100 tokens, 20 .. 79 of them an image, before any token is computed.
class Rows {
 public:
  explicit Rows(int32_t n_layers) : slots_(std::vector<std::vector<int32_t>>(static_cast<size_t>(n_layers), {0, 0})) {
    for (size_t i = 20; i < 80; ++i) tokens_[i].meta.modality = Modality::kVision;
  }
  PlanInputs inputs() const {
    return {.slots = slots_, .tokens = tokens_, .prompt = {.n_tokens = 100, .n_vision = 60, .n_after_vision = 20}};
  }
  std::vector<int32_t> per_layer(std::string_view policy, std::string_view budget = "") const {
    return parse_policy(policy, budget)->row_dropper()->rows_per_layer(inputs());
  }

 private:
  FixedSlots slots_;
  std::vector<TokenInfo> tokens_ = std::vector<TokenInfo>(100);
};

// r = 0.5 leaves 40 + 30 of the later layers' tokens, r = 0.3 40 + 42. A budget of 0.8: 400 of 5 layers, 200 of them
// the dense ones', the others 200 / 3. The least: (200 + 3 * 40) / 5 = 64.
TEST(FastV, RowsFollowTheHandComputedTable) {
  const Rows rows(5);
  EXPECT_THAT(rows.per_layer("fastv"), ElementsAre(100, 100, 70, 70, 70));
  EXPECT_THAT(rows.per_layer("fastv:k=4,r=0.3"), ElementsAre(100, 100, 100, 100, 82));
  EXPECT_THAT(rows.per_layer("fastv:k=1,r=1"), ElementsAre(100, 40, 40, 40, 40));
  EXPECT_THAT(rows.per_layer("fastv:k=9"), ElementsAre(100, 100, 100, 100, 100));
  EXPECT_THAT(rows.per_layer("fastv", "0.8"), ElementsAre(100, 100, 67, 67, 66));
  EXPECT_THAT(rows.per_layer("fastv:k=3", "91"), ElementsAre(100, 100, 100, 78, 77));
  EXPECT_THAT(rows.per_layer("fastv", "64"), ElementsAre(100, 100, 40, 40, 40));
  EXPECT_THAT(rows.per_layer("fastv", "1"), ElementsAre(100, 100, 100, 100, 100));
  EXPECT_THROW(rows.per_layer("fastv", "63"), Error);
}

// A layer computes the tokens that the one before has kept: 100, then 100 * 0.5^l; 20 at least. A budget of 0.4: 160 of
// 4 layers, 100 (d + d^2 + d^3) = 60 at d = 0.3894: 38.94, 15.16, 5.90.
TEST(PyramidInfer, RowsFollowTheHandComputedTable) {
  const Rows rows(4);
  EXPECT_THAT(rows.per_layer("pyramid_infer:decay=0.5,least=1"), ElementsAre(100, 100, 50, 25));
  EXPECT_THAT(rows.per_layer("pyramid_infer:decay=0.5,least=30"), ElementsAre(100, 100, 50, 30));
  EXPECT_THAT(rows.per_layer("pyramid_infer", "0.4"), ElementsAre(100, 100, 39, 15));
  EXPECT_THAT(rows.per_layer("pyramid_infer", "26"), ElementsAre(100, 100, 2, 1));  // 104: 2, 1, 1 besides
  EXPECT_THAT(rows.per_layer("pyramid_infer", "1"), ElementsAre(100, 100, 100, 100));
  EXPECT_THROW(rows.per_layer("pyramid_infer", "25"), Error);
}

// Two heads of 8 slots; the image is 2 .. 6, the last token 7. Means of the sums: 4: 3, 5: 3, 3: 2.5, 6: 2, 2: 1.
TEST(RowDroppers, RankByTheMeanOverHeads) {
  FixedSlots slots({{8, 8}, {8, 8}});
  std::vector<float> sums{9, 9, 2, 1, 6, 0, 0, 0, 9, 9, 0, 4, 0, 6, 4, 0}, other(16, 0.0f);
  Capture capture;
  const Capture* const captures[] = {&capture};
  capture.layers.resize(2);
  capture.layers[0].window_sums = Tensor(sums.data(), DType::kF32, {2, 8});
  capture.layers[1].window_sums = Tensor(other.data(), DType::kF32, {2, 8});
  std::vector<TokenInfo> tokens(8);
  for (size_t i = 2; i < 7; ++i) tokens[i].meta.modality = Modality::kVision;
  PlanInputs in{.slots = slots,
                .tokens = tokens,
                .prompt = {.n_tokens = 8, .n_vision = 5, .n_after_vision = 1},
                .captures = captures};
  const std::vector<int32_t> all{0, 1, 2, 3, 4, 5, 6, 7};
  const PolicyPtr fastv = parse_policy("fastv:k=1");
  EXPECT_THAT(fastv->row_dropper()->rows_after(in, 0, all, 5), ElementsAre(0, 1, 4, 5, 7));
  EXPECT_THAT(fastv->row_dropper()->rows_after(in, 0, all, 4), ElementsAre(0, 1, 5, 7));  // of equals the later
  const std::vector<int32_t> some{0, 1, 3, 5, 7};  // a later layer ranks as the first does
  EXPECT_THAT(fastv->row_dropper()->rows_after(in, 1, some, 4), ElementsAre(0, 1, 5, 7));
  tokens[7].meta.modality = Modality::kVision;  // the last token stays, also as a vision token
  EXPECT_THAT(fastv->row_dropper()->rows_after(in, 0, all, 3), ElementsAre(0, 1, 7));

  const PolicyPtr pyramid = parse_policy("pyramid_infer:sinks=1");
  EXPECT_THAT(pyramid->row_dropper()->rows_after(in, 0, all, 4), ElementsAre(0, 1, 5, 7));
  EXPECT_THAT(pyramid->row_dropper()->rows_after(in, 0, all, 2), ElementsAre(0, 7));
  EXPECT_THAT(pyramid->row_dropper()->rows_after(in, 0, all, 1), ElementsAre(7));
  in.first = 2;  // a second turn: no sinks, and only the new tokens
  const std::vector<int32_t> more{2, 3, 4, 5, 6, 7};
  EXPECT_THAT(pyramid->row_dropper()->rows_after(in, 0, more, 3), ElementsAre(4, 5, 7));
}

// A head that kept no slot of the prompt loses each token of the answer at once.
TEST(StreamingRule, HeadsCanHaveNoPromptSlots) {
  const PolicyPtr policy = parse_policy("knorm+global/streaming", "2");
  FixedSlots slots({{1, 3}});
  slots.n_at_prompt_end = 0;
  policy->on_step({.n_tokens = 9, .n_prompt = 8, .in_prompt = false}, slots);
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(0));
  EXPECT_THAT(slots.hidden(0, 1), ElementsAre(0, 1, 2));
}

// Two heads, one of which lacks the last token: the mean over both by token is .3 .5 .1 .1; values beyond the slots of
// a head are undefined.
TEST(TovaRule, HeadsCanHoldDifferentTokens) {
  const PolicyPtr policy = parse_policy("snapkv+global/tova", "2");
  FixedSlots slots({{4, 3}});
  std::vector<float> attention{0.4f, 0.2f, 0.2f, 0.2f, 0.2f, 0.8f, 0.0f, 1e9f}, scratch;
  for (float& a : attention) a = std::log(a);
  float lse[] = {0, 0};
  policy->on_scores(0,
                    {.logits = Tensor(attention.data(), DType::kF32, {2, 4}),
                     .lse = Tensor(lse, DType::kF32, {2}),
                     .n_generated = 1,
                     .scratch = scratch},
                    slots);
  const auto expect = [&](int32_t head, std::vector<float> values) {
    const std::span<const float> found = slots.plane(0, head, 0);
    ASSERT_EQ(found.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(found[i], values[i], 1e-6f) << head << " " << i;
  };
  expect(0, {0.3f, 0.5f, 0.1f, 0.1f});
  expect(1, {0.3f, 0.5f, 0.1f});
}

// The same after a prompt, where an earlier turn has left the heads different tokens.
TEST(Tova, HeadsCanHoldDifferentTokens) {
  const PolicyPtr policy = parse_policy("tova", "2");
  const FixedSlots slots({{4, 3}});
  std::vector<float> sums{0.4f, 0.2f, 0.2f, 0.2f, 0.2f, 0.8f, 0.0f, 1e9f};
  Capture capture;
  capture.layers.resize(1);
  capture.layers[0].window_sums = Tensor(sums.data(), DType::kF32, {2, 4});
  const Capture* const captures[] = {&capture};
  const std::vector<TokenInfo> tokens(4);
  KeepPlan plan;
  ASSERT_TRUE(policy->plan({.slots = slots,
                            .tokens = tokens,
                            .prompt = {.n_tokens = 4, .n_vision = 0, .n_after_vision = 4},
                            .captures = captures},
                           plan));
  EXPECT_THAT(plan.layers[0][0].keep, ElementsAre(1, 3));  // the last token of a head stays
  EXPECT_THAT(plan.layers[0][1].keep, ElementsAre(1, 2));
}

// Four slots after the prompt, every=2: after 2 tokens slot 0 (a sink) and the last slot stay, and the two best.
TEST(RefreshRule, SelectsAgainPeriodically) {
  const PolicyPtr policy = parse_policy("snapkv/refresh:every=2,weight=3,sinks=1", "0.5");
  FixedSlots slots(std::vector<std::vector<int32_t>>{{6}});
  slots.n_at_prompt_end = 4;
  std::vector<float> scratch;
  const auto decode = [&](int32_t n_generated, std::vector<float> attention) {
    for (float& a : attention) a = std::log(a);
    float lse = 0;
    policy->on_scores(0,
                      {.logits = Tensor(attention.data(), DType::kF32, {1, 6}),
                       .lse = Tensor(&lse, DType::kF32, {1}),
                       .n_generated = n_generated,
                       .scratch = scratch},
                      slots);
    policy->on_step({.n_tokens = 4 + n_generated, .n_prompt = 4, .in_prompt = false}, slots);
  };
  decode(1, {0.1f, 0.2f, 0.2f, 0.1f, 0.2f, 0.2f});
  EXPECT_THAT(slots.hidden(0, 0), IsEmpty());
  decode(2, {0.1f, 0.1f, 0.3f, 0.3f, 0.1f, 0.1f});  // 1 and 3 times: 1: 0.5, 2: 1.1, 3: 1.0, 4: 0.5
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(1, 4));
  for (const float x : slots.plane(0, 0, 0)) EXPECT_EQ(x, 0) << "counted anew";
}

}  // namespace
}  // namespace vlcache
