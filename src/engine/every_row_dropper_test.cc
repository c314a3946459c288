// Properties of every policy that drops tokens between the layers.
#include <algorithm>
#include <cmath>

#include "engine/engine_testing.h"

namespace vlcache {
namespace {

// Enough layers that there is something to drop.
constexpr int32_t kDropperLayers = 8;

std::vector<std::string> row_droppers() {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : policy_infos()) {
    if (policy.kind != PolicyInfo::Kind::kPolicy || !takes_budget(policy.name)) continue;
    if (parse_policy(policy.name)->row_dropper() == nullptr) continue;
    names.emplace_back(policy.name);
  }
  return names;
}

class EveryRowDropper : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Sequence> computed(const Prompt& prompt, std::string_view budget, int32_t chunk) {
    auto s = engine_->new_sequence(prompt, parse_policy(GetParam(), budget));
    logits_ = compute(*engine_, *s, chunk);
    return s;
  }

  // With M-RoPE, where positions are neither indices nor unique.
  std::unique_ptr<Engine> engine_ = make_engine(kDropperLayers, "auto", 64 << 20, "qwen3_vl_text");
  std::vector<float> logits_;
};

TEST_P(EveryRowDropper, MeetsItsBudgetInOrder) {
  for (const auto& [budget, mean] : {std::pair{"0.7", 105}, std::pair{"0.873", 131}, std::pair{"121", 121}}) {
    const auto s = computed(with_image(*engine_), budget, 64);
    const Kept kept = kept_tokens(*s);
    EXPECT_EQ(n_slots(kept), int64_t{mean} * kDropperLayers * kKvHeads) << budget;
    int64_t n_pages = 0;
    for (size_t layer = 0; layer < kept.size(); ++layer) {
      for (const auto& head : kept[layer]) {
        EXPECT_TRUE(std::ranges::is_sorted(head));
        EXPECT_TRUE(std::ranges::adjacent_find(head) == head.end());
        ASSERT_FALSE(head.empty());
        EXPECT_EQ(head.back(), 149) << "the last token always stays";
        if (layer > 0) {
          EXPECT_TRUE(std::ranges::includes(kept[layer - 1][0], head)) << "no row comes back";
        }
        n_pages += (std::ssize(head) + kPageSlots - 1) / kPageSlots;
      }
    }
    EXPECT_EQ(s->cache().n_pages(), n_pages);
  }
}

TEST_P(EveryRowDropper, KeepsTheSameForAnyChunk) {
  const Prompt prompt = with_image(*engine_);
  for (const char* budget : {"", "0.7"}) {
    const Kept whole = kept_tokens(*computed(prompt, budget, 512));
    for (const int32_t chunk : {64, 7}) EXPECT_EQ(kept_tokens(*computed(prompt, budget, chunk)), whole) << chunk;
  }
}

TEST_P(EveryRowDropper, FullBudgetEqualsFull) {
  const Prompt prompt = with_image(*engine_);
  const auto a = computed(prompt, "1", 64);
  const std::vector<float> logits = logits_;
  const auto b = engine_->new_sequence(prompt, parse_policy("full"));
  EXPECT_EQ(logits, compute(*engine_, *b, 64));
  EXPECT_EQ(kept_tokens(*a), kept_tokens(*b));
  for (int i = 0; i < 3; ++i) {
    for (Sequence* s : {a.get(), b.get()}) s->add_token(i);
    EXPECT_EQ(compute(*engine_, *a, 1), compute(*engine_, *b, 1));
  }
}

// Each prompt as its paper has it, and with the least budget it can have, which the error names.
TEST_P(EveryRowDropper, HandlesUnusualPrompts) {
  for (const Prompt& prompt :
       {with_image(*engine_, 1, 0, 0), with_image(*engine_, 1, 0, 1), with_image(*engine_, 70, 0, 70),
        with_image(*engine_, 70, 0, 0), with_image(*engine_, 3, 1, 2), with_image(*engine_, 2, 0, 1)}) {
    std::string least;
    try {
      computed(prompt, "0.01", 512);
      least = "0.01";
    } catch (const Error& e) {
      const std::string text = e.what(), mark = "a budget of ";
      ASSERT_NE(text.find(mark), std::string::npos) << text;
      least = text.substr(text.find(mark) + mark.size());
    }
    for (const std::string& budget : {std::string(), least, std::string("1")}) {
      const auto s = computed(prompt, budget, 512);
      for (const auto& layer : kept_tokens(*s)) {
        for (const auto& head : layer) {
          ASSERT_FALSE(head.empty());
          EXPECT_EQ(head.back(), prompt.n_tokens() - 1);
        }
      }
      for (const float x : logits_) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// An answer continues at the true positions, over what each layer has.
TEST_P(EveryRowDropper, ContinuesWithAnAnswer) {
  const auto s = computed(with_image(*engine_), "", 64);
  const Kept kept = kept_tokens(*s);
  for (int i = 0; i < 70; ++i) {
    s->add_token(i % kVocab);
    EXPECT_EQ(s->tokens().back().meta.position, Position::all(90 + i));
    for (const float x : compute(*engine_, *s, 1)) ASSERT_TRUE(std::isfinite(x));
  }
  const bool own_rule = s->policy().has_rule();  // after 64 tokens as many as after the prompt, then 6 more
  for (int32_t layer = 0; layer < kDropperLayers; ++layer) {
    const auto n = static_cast<int32_t>(kept[static_cast<size_t>(layer)][0].size());
    EXPECT_EQ(s->n_visible(layer, 1), n + (own_rule ? 6 : 70)) << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryRowDropper, testing::ValuesIn(row_droppers()));
}  // namespace
}  // namespace vlcache
