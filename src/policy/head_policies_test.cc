// Policies in which each head has a rule of its own, against hand-computed tables; files of head scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/contracts/model_files.h"
#include "base/error.h"
#include "policy/fixed_slots_testing.h"
#include "policy/head_scores.h"
#include "policy/registry.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::IsEmpty;

// A model in a folder of its own for every test.
class HeadFiles : public testing::Test, public ModelFiles {
 public:
  std::string where() const override { return folder_.string(); }
  std::filesystem::path companion(std::string_view name) const override { return folder_ / name; }
  std::string fingerprint() const override { return fingerprint_; }

 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("heads+" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  std::filesystem::path folder_;
  std::string fingerprint_ = "this one";
};

// Two layers of two kv heads.
constexpr std::string_view kFourHeads = R"({"echo": [[0.1, 0.5], [0.2, 0.3]], "induction": [[0.2, 0.1], [0.9, 0.4]]})";

KeepPlan plan_of(const Policy& policy, const PolicySlots& slots, std::span<const TokenInfo> tokens,
                 const Capture* capture = nullptr) {
  KeepPlan plan;
  const auto n = static_cast<int32_t>(tokens.size());
  EXPECT_TRUE(policy.plan({.slots = slots,
                           .tokens = tokens,
                           .prompt = {.n_tokens = n, .n_vision = 0, .n_after_vision = n},
                           .captures = {&capture, 1}},
                          plan));
  return plan;
}

// Ten slots: 0 is a special token, 3 a point, 4 a special token that stands for a part of an image.
std::vector<TokenInfo> ten_tokens(size_t n = 10) {
  std::vector<TokenInfo> tokens(n);
  tokens[0].token_class = TokenClass::kSpecial;
  tokens[3].token_class = TokenClass::kPunctuation;
  tokens[4].token_class = TokenClass::kSpecial;
  tokens[4].meta.modality = Modality::kVision;
  return tokens;
}

// All sums are of 10 queries; a rule must recover 9.5. Three slots are frequent, three are local.
TEST(FastGen, ChoosesTheCheapestRuleThatRecovers) {
  const PolicyPtr policy = parse_policy("fastgen");
  const CaptureRequest asked = policy->needs({.n_tokens = 10}).at(0);
  EXPECT_TRUE(asked.all_sums);
  EXPECT_EQ(asked.band, 3);
  std::vector<float> sums{
      9.6f, 0,    0,    0.1f, 0.1f,
      0.1f, 0,    0,    0,    0.1f,  // special: 9.6
      8,    0,    0,    1.6f, 0.1f,
      0.1f, 0,    0,    0,    0.2f,  // with the point: 9.6
      5,    0,    0,    1,    0.1f,
      2,    0,    1.6f, 0.1f, 0.2f,  // with slots 0, 5 and 7: 9.6
      3,    0.7f, 0.7f, 0.7f, 0.7f,
      0.7f, 0.7f, 0.7f, 0.8f, 1.3f,  // slots 0, 8, 9 and 3: 5.8, and local ones: see below
      1,    1,    1,    1,    1,
      1,    1,    1,    1,    1,  // slots 9, 8, 7, of equals the later, 0 and 3: 5
  };
  // Of head 3, 0.65 of 0.7 in slots 1, 2, 4, 5, 6, 7 lie within the band: 6 x 0.05 = 0.3 is lost.
  std::vector<float> band(50, 0.3f);
  std::fill_n(band.begin() + 30, 10, 0.65f);
  Capture capture;
  capture.layers.resize(1);
  capture.layers[0].all_sums = Tensor(sums.data(), DType::kF32, {5, 10});
  capture.layers[0].band_sums = Tensor(band.data(), DType::kF32, {5, 10});
  const FixedSlots slots({{10, 10, 10, 10, 10}});
  const std::vector<TokenInfo> tokens = ten_tokens();
  const KeepPlan plan = plan_of(*policy, slots, tokens, &capture);
  const std::vector<KeepPlan::Head>& heads = plan.layers.at(0);
  EXPECT_THAT(heads[0].keep, ElementsAre(0));
  EXPECT_THAT(heads[1].keep, ElementsAre(0, 3));
  EXPECT_THAT(heads[2].keep, ElementsAre(0, 3, 5, 7));
  EXPECT_THAT(heads[3].keep, ElementsAre(0, 3, 7, 8, 9));
  EXPECT_THAT(heads[4].keep, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(heads[2].planes, ElementsAre(5, 1, 2, 1.6f, 3, 3, 3, 3));  // sums, then the rule
  EXPECT_THAT(heads[0].planes, ElementsAre(9.6f, 1));

  const KeepPlan all = plan_of(*parse_policy("fastgen:t=1"), slots, tokens, &capture);
  for (const KeepPlan::Head& head : all.layers[0]) EXPECT_EQ(head.keep.size(), 10u);
  const KeepPlan few = plan_of(*parse_policy("fastgen:t=0.59"), slots, tokens, &capture);
  EXPECT_THAT(few.layers[0][1].keep, ElementsAre(0));     // 8 of 5.9
  EXPECT_THAT(few.layers[0][2].keep, ElementsAre(0, 3));  // 6 of 5.9
}

// After a prompt of 10 tokens, tokens 10 and 11 are generated; each head continues by its rule.
TEST(FastGen, ContinuesByTheRuleWhileDecoding) {
  const PolicyPtr policy = parse_policy("fastgen");
  FixedSlots slots({{12, 12, 12, 12, 12, 12}});
  for (int32_t head = 0; head < 5; ++head) {
    std::fill_n(slots.plane(0, head, 1).begin(), 11, static_cast<float>(head + 1));  // slot 11 is new
    const std::vector<float> sums{5, 0, 0, 0.1f, 0, 2, 0, 1.6f, 0, 0, 0.5f, 0.2f};
    std::ranges::copy(sums, slots.plane(0, head, 0).begin());
  }
  std::vector<TokenInfo> tokens = ten_tokens(12);
  tokens[11].token_class = TokenClass::kPunctuation;
  policy->on_step({.n_tokens = 12, .n_prompt = 10, .in_prompt = false, .tokens = tokens}, slots);
  EXPECT_THAT(slots.plane(0, 2, 1), Each(3.0f)) << "the new slot knows its head's rule";
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(11));                // a point is not a special token
  EXPECT_THAT(slots.hidden(0, 1), IsEmpty());                      // it is punctuation
  EXPECT_THAT(slots.hidden(0, 2), ElementsAre(1, 2, 4, 6, 8, 9));  // round(3.6) = 4 stay: 0, 5, 7, 10; and 3, 11
  EXPECT_THAT(slots.hidden(0, 3), ElementsAre(1, 2, 4, 6, 8));     // and the last three, 9, 10, 11
  EXPECT_THAT(slots.hidden(0, 4), IsEmpty());
  EXPECT_THAT(slots.hidden(0, 5), IsEmpty()) << "no rule was chosen yet";
}

// A prompt that continues after the position at which its policy has acted.
TEST(FastGen, KeepsTokensAfterACut) {
  const PolicyPtr policy = parse_policy("fastgen");
  FixedSlots slots(std::vector<std::vector<int32_t>>{{12}});
  std::fill_n(slots.plane(0, 0, 1).begin(), 6, 3.0f);
  std::fill_n(slots.plane(0, 0, 0).begin(), 6, 7.0f);
  const std::vector<TokenInfo> tokens(13);
  policy->on_step({.n_tokens = 12, .n_prompt = 12, .in_prompt = false, .tokens = tokens}, slots);
  for (size_t i = 6; i < 12; ++i) EXPECT_TRUE(std::isinf(slots.plane(0, 0, 0)[i])) << i;
  for (int32_t i = 6; i < 12; ++i) EXPECT_THAT(slots.hidden(0, 0), testing::Not(testing::Contains(i)));
}

TEST_F(HeadFiles, RazorMergesTheTokensOfOtherHeads) {
  write("heads.json", kFourHeads);
  const PolicyPtr policy = parse_policy("razor:sinks=2,window=3,ratio=100", "", this);
  // One head of four for its echo, (0, 1), and one for its induction, (1, 0).
  const FixedSlots slots({{12, 12}, {12, 6}});
  policy->check_fits(slots);
  const std::vector<TokenInfo> tokens(12);
  const KeepPlan plan = plan_of(*policy, slots, tokens);
  EXPECT_EQ(plan.layers[0][1].keep.size(), 12u);
  EXPECT_EQ(plan.layers[1][0].keep.size(), 12u);
  const KeepPlan::Head& head = plan.layers[0][0];
  EXPECT_THAT(head.keep, ElementsAre(0, 1, 9, 10, 11));
  ASSERT_EQ(head.merges.size(), 1u);
  EXPECT_THAT(head.merges[0].sources, ElementsAre(2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(head.merges[0].weights, Each(FloatNear(1.0f / 7, 1e-6f)));
  EXPECT_THAT(head.slot_bias, ElementsAre(0, 0, FloatNear(std::log(7.0f), 1e-6f), 0, 0, 0));
  EXPECT_EQ(plan.layers[1][1].keep.size(), 6u) << "one slot that is too many is no two that become one";
  EXPECT_THAT(plan.layers[1][1].merges, IsEmpty());

  // The window of a long prompt is a share of it.
  const PolicyPtr share = parse_policy("razor:sinks=0,window=1,ratio=3", "", this);
  EXPECT_THAT(plan_of(*share, slots, tokens).layers[0][0].keep, ElementsAre(8, 9, 10, 11));
}

TEST_F(HeadFiles, DuoStreamsInHalfOfTheHeads) {
  write("heads.json", kFourHeads);  // the larger of both: 0.2, 0.5, 0.9, 0.4
  const auto kept = [&](const std::string& parameters) {
    const FixedSlots slots({{12, 12}, {12, 12}});
    const KeepPlan plan =
        plan_of(*parse_policy("duo:sinks=2,recent=3" + parameters, "", this), slots, std::vector<TokenInfo>(12));
    std::vector<size_t> n;
    for (const auto& layer : plan.layers) {
      for (const KeepPlan::Head& head : layer) {
        n.push_back(head.keep.size());
        if (n.back() == 5) {
          EXPECT_THAT(head.keep, ElementsAre(0, 1, 9, 10, 11));
        }
      }
    }
    return n;
  };
  EXPECT_THAT(kept(""), ElementsAre(5, 12, 12, 5));
  EXPECT_THAT(kept(",sparsity=0"), ElementsAre(12, 12, 12, 12));
  EXPECT_THAT(kept(",sparsity=0.75"), ElementsAre(5, 5, 12, 5));
  EXPECT_THAT(kept(",sparsity=1"), ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(kept(",threshold=0.4"), ElementsAre(5, 12, 12, 12));

  const PolicyPtr duo = parse_policy("duo:sinks=2,recent=3", "", this);
  FixedSlots slots({{9, 9}, {4, 9}});
  duo->on_step({.n_tokens = 9, .in_prompt = true}, slots);
  EXPECT_EQ(slots.n_calls, 0);
  duo->on_step({.n_tokens = 9, .in_prompt = false}, slots);
  EXPECT_THAT(slots.hidden(0, 0), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(slots.hidden(0, 1), IsEmpty());
  EXPECT_THAT(slots.hidden(1, 1), ElementsAre(2, 3, 4, 5));
}

// A window of 8 leaves slots 5 to 11 of 12, none of them a sink.
TEST_F(HeadFiles, NoOtherSlotsBecomeSinksOnceAWindowHasPassedThem) {
  write("heads.json", kFourHeads);
  FixedSlots slots({{12, 12}, {12, 12}});
  slots.sliding_window = 8;
  const std::vector<TokenInfo> tokens(12);
  const KeepPlan duo = plan_of(*parse_policy("duo:sinks=2,recent=3,sparsity=1", "", this), slots, tokens);
  EXPECT_THAT(duo.layers[0][0].keep, ElementsAre(9, 10, 11));
  const KeepPlan razor = plan_of(*parse_policy("razor:sinks=2,window=3,ratio=100", "", this), slots, tokens);
  EXPECT_THAT(razor.layers[0][0].keep, ElementsAre(9, 10, 11));
  EXPECT_THAT(razor.layers[0][0].slot_bias, ElementsAre(FloatNear(std::log(4.0f), 1e-6f), 0, 0, 0));
}

TEST_F(HeadFiles, ReadsTheFormatOfDuoAttention) {
  // In the format of mit-han-lab/duo-attention: training leaves values a little outside [0, 1].
  const std::string path = write(
      "full_attention_heads.tsv",
      "-9.584426879882812500e-05\t5.585937500000000000e-01\r\n1.000000000000000000e+00\t2.021789550781250000e-04\n");
  const HeadScores scores = parse_head_scores("-1e-05\t0.5\n1\t0.25\n", "f");
  EXPECT_THAT(scores.echo, IsEmpty());
  EXPECT_THAT(scores.induction, ElementsAre(ElementsAre(-1e-05f, 0.5f), ElementsAre(1.0f, 0.25f)));
  const KeepPlan plan = plan_of(*parse_policy("duo:sinks=1,recent=1,threshold=0.5,heads=" + path),
                                FixedSlots({{4, 4}, {4, 4}}), std::vector<TokenInfo>(4));
  EXPECT_EQ(plan.layers[0][0].keep.size(), 2u);
  EXPECT_EQ(plan.layers[0][1].keep.size(), 4u);
  EXPECT_EQ(plan.layers[1][0].keep.size(), 4u);
  EXPECT_EQ(plan.layers[1][1].keep.size(), 2u);
  EXPECT_THAT(error_of([&] { parse_policy("razor:heads=" + path); }), HasSubstr("one score per head; razor needs"));
}

TEST_F(HeadFiles, PathsCanContainCharactersOfTheGrammar) {
  std::filesystem::create_directories(folder_ / "a+b");
  const std::string path = write("a+b/h2o@x:y.json", kFourHeads);
  EXPECT_EQ(parse_policy("duo:heads=" + path)->name(), "duo:heads=" + path);
  EXPECT_EQ(parse_policy("duo:heads=" + path + ",recent=9")->name(), "duo:heads=" + path + ",recent=9");
  EXPECT_EQ(parse_policy("razor:window=9,heads=" + path)->name(), "razor:heads=" + path + ",window=9");
  EXPECT_THAT(error_of([&] { parse_policy("duo:heads=" + path + ",recent=9/h2o"); }),
              HasSubstr("'duo' takes no decode rule"));
  EXPECT_THAT(error_of([&] { parse_policy("snapkv:heads=a/b"); }), HasSubstr("snapkv: unknown parameter 'heads'"));
}

TEST_F(HeadFiles, MissingFileErrorNamesTheCommandThatCreatesIt) {
  for (const std::string name : {"razor", "duo"}) {
    EXPECT_THAT(error_of([&] { parse_policy(name); }),
                HasSubstr(name + ": no file of head scores; `vlcache tune heads -m DIR` makes one"));
    EXPECT_THAT(error_of([&] { parse_policy(name, "", this); }),
                HasSubstr("no file of head scores at " + (folder_ / "heads.json").string()));
    EXPECT_THAT(error_of([&] { parse_policy(name + ":heads=" + folder_.string()); }), HasSubstr("no file"));
    EXPECT_THAT(error_of([&] { parse_policy(name + ":heads=/dev/zero"); }), HasSubstr("no file"));
  }
}

TEST_F(HeadFiles, AnotherModelsFileIsAnError) {
  write("heads.json", kFourHeads);
  for (const char* name : {"razor", "duo"}) {
    const PolicyPtr policy = parse_policy(name, "", this);
    EXPECT_NO_THROW(policy->check_fits(FixedSlots({{0, 0}, {0, 0}})));
    EXPECT_NO_THROW(policy->check_fits(FixedSlots({{0, 0}, {}}))) << "a layer without KV of its own";
    EXPECT_THAT(error_of([&] {
                  policy->check_fits(FixedSlots({{0, 0}}));
                }),
                HasSubstr("scores of 2 layers, 2 kv heads in the first; the model has 1 layers of 2 kv heads; "
                          "`vlcache tune heads"));
    EXPECT_THAT(error_of([&] { policy->check_fits(FixedSlots({{0, 0}, {0}})); }), HasSubstr("heads.json: scores of"));
  }
}

TEST_F(HeadFiles, MustMatchTheModel) {
  HeadScores scores = parse_head_scores(kFourHeads, "f");
  scores.model = fingerprint_;
  const std::string path = write("heads.json", head_scores_json(scores));
  EXPECT_NO_THROW(parse_policy("duo", "", this));
  fingerprint_ = "trained on";
  EXPECT_NO_THROW(parse_policy("duo:heads=" + path)) << "no model to compare with";
  for (const std::string& policy : {std::string("duo"), "razor:heads=" + path}) {
    EXPECT_THAT(error_of([&] { parse_policy(policy, "", this); }),
                HasSubstr("heads.json: scores of another model than " + folder_.string() + "; `vlcache tune heads -m"));
  }
}

TEST(HeadScoresFile, SurvivesARoundTrip) {
  const HeadScores scores{
      .model = "a\"b", .echo = {{0.1f, 1e-30f}, {0, 3}}, .induction = {{0.25f, 7}, {1, 0.333333343f}}};
  const HeadScores read = parse_head_scores(head_scores_json(scores), "f");
  EXPECT_EQ(read.model, scores.model);
  EXPECT_EQ(read.echo, scores.echo);
  EXPECT_EQ(read.induction, scores.induction);
}

TEST(HeadScoresFile, RejectsInvalidFiles) {
  const auto error = [](std::string_view text) { return error_of([&] { parse_head_scores(text, "FILE"); }); };
  EXPECT_THAT(error(""), HasSubstr("FILE: expected 1 to 4096 layers"));
  EXPECT_THAT(error("\n \n"), HasSubstr("FILE: expected 1 to 4096 layers"));
  EXPECT_THAT(error("1\tnan\n"), HasSubstr("FILE, line 1: expected a finite number for every kv head, found 'nan'"));
  EXPECT_THAT(error("1\t2\n1\t1e99\n"), HasSubstr("FILE, line 2"));
  EXPECT_THAT(error("1,2\n"), HasSubstr("found '1,2'"));
  EXPECT_THAT(error("{"), HasSubstr("FILE"));
  EXPECT_THAT(error("{}"), HasSubstr("FILE: echo: expected a list of finite numbers for each layer"));
  EXPECT_THAT(error(R"({"echo": [], "induction": []})"), HasSubstr("FILE: echo: expected 1 to 4096 layers"));
  EXPECT_THAT(error(R"({"echo": [[]], "induction": [[]]})"), HasSubstr("expected 1 to 4096 layers"));
  EXPECT_THAT(error(R"({"echo": [[1]], "induction": [["x"]]})"), HasSubstr("FILE: induction: expected a list"));
  EXPECT_THAT(error(R"({"echo": [[1e99]], "induction": [[1]]})"), HasSubstr("FILE: echo: expected a list"));
  EXPECT_THAT(error(R"({"echo": [[1], 2], "induction": [[1], [2]]})"), HasSubstr("FILE: echo: expected a list"));
  EXPECT_THAT(error(R"({"echo": [[1, 2]], "induction": [[1], [2]]})"), HasSubstr("are not of the same heads"));
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "1\n";
  EXPECT_THAT(error(many), HasSubstr("expected 1 to 4096 layers"));
  EXPECT_THAT(error(std::string(9000, '1') + " 2\n"), HasSubstr("found '1111111111111111111111111111111111111111'"));
}

}  // namespace
}  // namespace vlcache
