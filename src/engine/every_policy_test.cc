// Properties of every policy that evicts, as the registry lists them: budgets, order, full budgets, odd prompts.
#include <algorithm>
#include <cmath>

#include "engine/engine_testing.h"

namespace vlcache {
namespace {

constexpr int32_t kPolicyLayers = 3;

// All pairs; with the slow backend alone each part once.
std::vector<std::string> pairs() {
  std::vector<std::string> names{"pointer@draft+uniform"};
  using Kind = PolicyInfo::Kind;
  for (const PolicyInfo& scorer : policy_infos()) {
    if (scorer.kind != Kind::kScorer) continue;
    const bool places = scorer.name == "streaming" || scorer.name == "window" || scorer.name == "dilated";
    for (const PolicyInfo& allocator : policy_infos()) {
      if (allocator.kind != Kind::kAllocator || allocator.name == "per_error") continue;
      if (places && allocator.name != "uniform" && allocator.name != "pyramid") continue;
      if (only_ref() && allocator.name != "uniform" && scorer.name != "post_vision") continue;
      names.push_back(std::string(scorer.name) + "+" + std::string(allocator.name));
    }
  }
  return names;
}

class EveryPolicy : public testing::TestWithParam<std::string> {
 protected:
  Kept kept(const Prompt& prompt, std::string_view budget, int32_t chunk) {
    const auto s = engine_->new_sequence(prompt, parse_policy(GetParam(), budget));
    logits_ = compute(*engine_, *s, chunk);
    return kept_tokens(*s);
  }

  // With M-RoPE, where positions are neither indices nor unique.
  std::unique_ptr<Engine> engine_ = make_engine(kPolicyLayers, "auto", 64 << 20, "qwen2_5_vl_text");
  std::vector<float> logits_;  // of the token after the prompt, computed before anything was evicted
};

TEST_P(EveryPolicy, MeetsItsBudgetInOrder) {
  const Prompt prompt = with_image(*engine_);
  for (const auto& [budget, mean] : {std::pair{"0.1", 15}, std::pair{"0.3", 45}, std::pair{"21", 21}}) {
    const Kept kept = this->kept(prompt, budget, 64);
    EXPECT_EQ(n_slots(kept), int64_t{mean} * kPolicyLayers * kKvHeads) << budget;
    for (const auto& layer : kept) {
      for (const auto& head : layer) {
        EXPECT_TRUE(std::ranges::is_sorted(head));
        EXPECT_TRUE(std::ranges::adjacent_find(head) == head.end());
        ASSERT_FALSE(head.empty());
        EXPECT_EQ(head.back(), 149) << "the last token is recent";
      }
    }
  }
}

TEST_P(EveryPolicy, KeepsTheSameForAnyChunk) {
  const Prompt prompt = with_image(*engine_);
  EXPECT_EQ(kept(prompt, "0.2", 64), kept(prompt, "0.2", 64));
  // Another chunk rounds otherwise; a handful of ties may fall otherwise.
  const Kept a = kept(prompt, "0.2", 512), b = kept(prompt, "0.2", 7);
  int64_t n_common = 0;
  for (size_t l = 0; l < a.size(); ++l) {
    for (size_t h = 0; h < a[l].size(); ++h) {
      std::vector<int32_t> common;
      std::ranges::set_intersection(a[l][h], b[l][h], std::back_inserter(common));
      n_common += std::ssize(common);
    }
  }
  EXPECT_GE(n_common, n_slots(a) * 98 / 100);
}

TEST_P(EveryPolicy, FullBudgetEqualsFull) {
  const Prompt prompt = with_image(*engine_);
  const auto a = engine_->new_sequence(prompt, parse_policy(GetParam(), "1"));
  const auto b = engine_->new_sequence(prompt, parse_policy("full"));
  for (Sequence* s : {a.get(), b.get()}) compute(*engine_, *s, 64);
  EXPECT_EQ(kept_tokens(*a), kept_tokens(*b));
  for (int i = 0; i < 3; ++i) {
    for (Sequence* s : {a.get(), b.get()}) s->add_token(i);
    const std::vector<float> x = compute(*engine_, *a, 1), y = compute(*engine_, *b, 1);
    EXPECT_EQ(x, y);
  }
}

// The policy acts after the image; later tokens attend to what is kept, and are kept themselves.
TEST_P(EveryPolicy, ActsBeforeTheQuestionIsKnown) {
  Prompt prompt = with_image(*engine_);
  prompt.query_aware = false;
  EXPECT_EQ(n_slots(kept(prompt, "0.2", 64)), (20 + 50) * kPolicyLayers * kKvHeads);
  const Kept all = kept(prompt, "1", 64);
  const std::vector<float> logits = logits_;
  const auto full = engine_->new_sequence(prompt, parse_policy("full"));
  EXPECT_EQ(compute(*engine_, *full, 64), logits);
  EXPECT_EQ(kept_tokens(*full), all);
}

TEST_P(EveryPolicy, HandlesUnusualPrompts) {
  for (const Prompt& prompt :
       {with_image(*engine_, 1, 0, 0), with_image(*engine_, 1, 0, 1), with_image(*engine_, 70, 0, 70),
        with_image(*engine_, 70, 0, 0), with_image(*engine_, 3, 1, 2)}) {
    for (const char* budget : {"0.01", "0.5", "2"}) {
      const Kept kept = this->kept(prompt, budget, 512);
      for (const auto& layer : kept) {
        for (const auto& head : layer) EXPECT_FALSE(head.empty());
      }
      for (const float x : logits_) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// A second turn compresses what is left of the first together with what is new; generated tokens lie between.
TEST_P(EveryPolicy, ContinuesInASecondTurn) {
  const auto s = engine_->new_sequence(with_image(*engine_), parse_policy(GetParam(), "0.2"));
  compute(*engine_, *s, 64);
  s->add_token(5);
  compute(*engine_, *s, 64);
  const Prompt prompt = second_turn(*engine_);
  const auto needs = s->policy().needs(prompt.shape());
  if (std::ranges::any_of(needs, &CaptureRequest::needs_all_rows)) {
    EXPECT_EQ(s->continue_with(prompt), 151);
    EXPECT_THROW(compute(*engine_, *s, 64), StepFailed);  // the first turn's queries are not computed again
    return;
  }
  EXPECT_EQ(s->continue_with(prompt), 151);
  compute(*engine_, *s, 64);
  EXPECT_EQ(n_slots(kept_tokens(*s)), 40 * kPolicyLayers * kKvHeads);
}

// Keys that no rotation moves, and layer norms before them.
TEST_P(EveryPolicy, WorksWithLearnedPositions) {
  const std::unique_ptr<Engine> engine = make_engine(kPolicyLayers, "auto", 64 << 20, "gpt2");
  const auto s = engine->new_sequence(with_image(*engine), parse_policy(GetParam(), "0.2"));
  compute(*engine, *s, 64);
  EXPECT_EQ(n_slots(kept_tokens(*s)), 30 * kPolicyLayers * kKvHeads);
  s->add_token(5);
  for (const float x : compute(*engine, *s, 1)) ASSERT_TRUE(std::isfinite(x));
}

INSTANTIATE_TEST_SUITE_P(Pairs, EveryPolicy, testing::ValuesIn(pairs()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '+' || c == '@' || c == '-'; }, '_');
  return name;
});

// An answer of 40 tokens: heads stay as they were after the prompt, or grow by what the rule leaves.
class EveryRule : public testing::TestWithParam<std::string> {};

TEST_P(EveryRule, KeepsTheBudgetWhileDecoding) {
  const std::unique_ptr<Engine> engine = make_engine(kPolicyLayers);
  for (const char* policy : {"post_vision+uniform", "snapkv+ada_head", "knorm+pyramid"}) {
    const auto s = engine->new_sequence(with_image(*engine), parse_policy(policy + ("/" + GetParam()), "0.2"));
    compute(*engine, *s, 64);
    std::vector<int32_t> before;
    for (int32_t i = 0; i < kPolicyLayers * kKvHeads; ++i) before.push_back(s->n_visible(i / kKvHeads, i % kKvHeads));
    for (int step = 0; step < 40; ++step) {
      s->add_token(step % kVocab);
      for (const float x : compute(*engine, *s, 1)) ASSERT_TRUE(std::isfinite(x));
      for (int32_t i = 0; i < kPolicyLayers * kKvHeads; ++i) {
        const int32_t n = s->n_visible(i / kKvHeads, i % kKvHeads), room = before[static_cast<size_t>(i)];
        const bool periodic = GetParam().starts_with("periodic"), refresh = GetParam().starts_with("refresh");
        // periodic:every=16,keep=0.25 has looked at 16 generated tokens and left 4, then at 32 and left 8; refresh
        // none.
        const int since = (step + 1) % 16, looked = step + 1 - since;
        const int more = periodic ? looked / 4 + since : refresh ? since : 0;
        ASSERT_LE(n, room + more) << policy << " step " << step;
        ASSERT_GE(n, std::min(room, std::max(1, room / 2)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryRule,
                         testing::Values("h2o", "keyformer", "scissorhands", "tova", "streaming",
                                         "periodic:every=16,keep=0.25", "refresh:every=16"),
                         [](const auto& info) { return info.param.substr(0, info.param.find(':')); });

// Evicting chunk by chunk holds a chunk and a budget's worth at most, and ends with the budget.
TEST_P(EveryPolicy, EvictsDuringPrefill) {
  Prompt prompt = with_image(*engine_, 300, 30, 200);
  prompt.evict_every = 64;
  const PolicyPtr policy = parse_policy(GetParam(), "0.1");
  const auto s = engine_->new_sequence(prompt, policy);
  const auto needs = policy->needs(prompt.shape());
  if (std::ranges::any_of(needs, &CaptureRequest::needs_whole_prompt)) {
    EXPECT_THROW(compute(*engine_, *s, 100), StepFailed);
    return;
  }
  while (s->n_pending() > 0) {
    step(*engine_, *s, 100);
    int64_t n = 0;
    for (int32_t i = 0; i < kPolicyLayers * kKvHeads; ++i) n += s->n_visible(i / kKvHeads, i % kKvHeads);
    const int32_t n_draft = s->looks_ahead() ? 64 : 0;
    EXPECT_LE(n, int64_t{64 + 30 + n_draft} * kPolicyLayers * kKvHeads);
  }
  EXPECT_EQ(n_slots(kept_tokens(*s)), 30 * kPolicyLayers * kKvHeads);
  EXPECT_LT(s->peak_kv_bytes(),
            engine_->new_sequence(prompt, policy)->cache().page_bytes(0) * kPolicyLayers * kKvHeads * 4);
  s->release();  // and from the start once more
  compute(*engine_, *s, 100);
  EXPECT_EQ(n_slots(kept_tokens(*s)), 30 * kPolicyLayers * kKvHeads);
}

// Pages of the kept slots never exceed a budget in bytes, and use what they may.
TEST(ByteBudget, IsNeverExceeded) {
  const std::unique_ptr<Engine> engine = make_engine(kPolicyLayers);
  const Prompt prompt = with_image(*engine, 300);
  const auto page = engine->new_sequence(prompt, parse_policy("full"))->cache().page_bytes(0);
  for (const char* policy : {"post_vision+uniform", "vl-cache", "adakv", "snapkv+zigzag"}) {
    for (const int64_t n_pages : {6, 13, 1000}) {
      const auto s = engine->new_sequence(prompt, parse_policy(policy, std::to_string(n_pages * page + 5) + "B"));
      compute(*engine, *s, 512);
      EXPECT_LE(s->cache().bytes(), n_pages * page) << policy;
      EXPECT_GE(s->cache().bytes(), std::min<int64_t>(n_pages, 6 * 5) * page * 6 / 10) << policy << n_pages;
    }
    const auto s = engine->new_sequence(prompt, parse_policy(policy, std::to_string(6 * page - 1) + "B"));
    EXPECT_THROW(compute(*engine, *s, 512), Error);
  }
}

// What is lost falls with the error that is allowed, and a large one costs few slots.
TEST(ErrorBudget, SpendsAsFewSlotsAsItCan) {
  const std::unique_ptr<Engine> engine = make_engine(kPolicyLayers);
  const Prompt prompt = with_image(*engine, 300);
  int64_t before = INT64_MAX;
  for (const char* budget : {"error=0.001", "error=0.05", "error=0.3", "error=0.9"}) {
    const auto s = engine->new_sequence(prompt, parse_policy("post_vision", budget));
    compute(*engine, *s, 512);
    const int64_t n = n_slots(kept_tokens(*s));
    EXPECT_LT(n, before) << budget;
    before = n;
  }
  EXPECT_LT(before, 300);
}

}  // namespace
}  // namespace vlcache
