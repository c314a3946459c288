// What holds for every policy that evicts, found by the registry: budgets, order, full budgets, odd prompts.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "engine/batch.h"
#include "engine/engine_testing.h"

namespace vlcache {
namespace {

constexpr int32_t kLayers = 3;

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

using Kept = std::vector<std::vector<std::vector<int32_t>>>;

Kept kept_tokens(const Sequence& s) {
  Kept kept(static_cast<size_t>(s.slots().n_layers()));
  for (int32_t layer = 0; layer < s.slots().n_layers(); ++layer) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const std::span<const int32_t> tokens = s.cache().slot_tokens(layer, head);
      kept[static_cast<size_t>(layer)].emplace_back(tokens.begin(), tokens.end());
    }
  }
  return kept;
}

int64_t n_slots(const Kept& kept) {
  int64_t n = 0;
  for (const auto& layer : kept) {
    for (const auto& head : layer) n += std::ssize(head);
  }
  return n;
}

// 150 tokens, of them 30 .. 99 an image: nobody asks what the embeddings are.
Prompt with_image(Engine& engine, int32_t n = 150, int32_t begin = 30, int32_t end = 100) {
  Prompt prompt = engine.prepare_tokens(random_tokens(n));
  if (begin >= end) return prompt;
  prompt.spans = {{.begin = begin, .end = end, .image = 0, .first_row = 0}};
  prompt.images.emplace_back().allocate(1, 2, 2);
  return prompt;
}

class EveryPolicy : public testing::TestWithParam<std::string> {
 protected:
  Kept kept(const Prompt& prompt, std::string_view budget, int32_t chunk) {
    const auto s = engine_->new_sequence(prompt, parse_policy(GetParam(), budget));
    logits_ = compute(*engine_, *s, chunk);
    return kept_tokens(*s);
  }

  std::unique_ptr<Engine> engine_ = make_engine(kLayers);
  std::vector<float> logits_;  // of the token behind the prompt, computed before anything went
};

TEST_P(EveryPolicy, MeetsItsBudgetInOrder) {
  const Prompt prompt = with_image(*engine_);
  for (const auto& [budget, mean] : {std::pair{"0.1", 15}, std::pair{"0.3", 45}, std::pair{"21", 21}}) {
    const Kept kept = this->kept(prompt, budget, 64);
    EXPECT_EQ(n_slots(kept), int64_t{mean} * kLayers * kKvHeads) << budget;
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

TEST_P(EveryPolicy, KeepsTheSameWhateverTheChunk) {
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

TEST_P(EveryPolicy, AFullBudgetIsFull) {
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

// The policy acts behind the image; what follows is read by what stays, and stays itself.
TEST_P(EveryPolicy, NeedNotKnowTheQuestion) {
  Prompt prompt = with_image(*engine_);
  prompt.query_aware = false;
  EXPECT_EQ(n_slots(kept(prompt, "0.2", 64)), (20 + 50) * kLayers * kKvHeads);
  const Kept all = kept(prompt, "1", 64);
  const std::vector<float> logits = logits_;
  const auto full = engine_->new_sequence(prompt, parse_policy("full"));
  EXPECT_EQ(compute(*engine_, *full, 64), logits);
  EXPECT_EQ(kept_tokens(*full), all);
}

TEST_P(EveryPolicy, TakesOddPrompts) {
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
TEST_P(EveryPolicy, GoesOnInASecondTurn) {
  const auto s = engine_->new_sequence(with_image(*engine_), parse_policy(GetParam(), "0.2"));
  compute(*engine_, *s, 64);
  s->add_token(5);
  compute(*engine_, *s, 64);
  std::vector<int32_t> ids = random_tokens(150);
  ids.push_back(5);
  const std::vector<int32_t> more = random_tokens(49, 11);
  ids.insert(ids.end(), more.begin(), more.end());
  Prompt prompt = engine_->prepare_tokens(ids);
  Prompt first = with_image(*engine_);
  prompt.spans = first.spans;
  prompt.images = std::move(first.images);
  const auto needs = s->policy().needs(prompt.shape());
  if (std::ranges::any_of(needs, &CaptureRequest::needs_all_rows)) {
    EXPECT_EQ(s->continue_with(prompt), 151);
    EXPECT_THROW(compute(*engine_, *s, 64), StepFailed);  // nobody computes the first turn's queries again
    return;
  }
  EXPECT_EQ(s->continue_with(prompt), 151);
  compute(*engine_, *s, 64);
  EXPECT_EQ(n_slots(kept_tokens(*s)), 40 * kLayers * kKvHeads);
}

INSTANTIATE_TEST_SUITE_P(Pairs, EveryPolicy, testing::ValuesIn(pairs()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '+' || c == '@'; }, '_');
  return name;
});

// An answer of 40 tokens: heads stay as they were behind the prompt, or grow by what the rule leaves.
class EveryRule : public testing::TestWithParam<std::string> {};

TEST_P(EveryRule, HoldsWhatItLeaves) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  for (const char* policy : {"post_vision+uniform", "snapkv+ada_head", "knorm+pyramid"}) {
    const auto s = engine->new_sequence(with_image(*engine), parse_policy(policy + ("/" + GetParam()), "0.2"));
    compute(*engine, *s, 64);
    std::vector<int32_t> before;
    for (int32_t i = 0; i < kLayers * kKvHeads; ++i) before.push_back(s->n_visible(i / kKvHeads, i % kKvHeads));
    for (int step = 0; step < 40; ++step) {
      s->add_token(step % kVocab);
      for (const float x : compute(*engine, *s, 1)) ASSERT_TRUE(std::isfinite(x));
      for (int32_t i = 0; i < kLayers * kKvHeads; ++i) {
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

// Policies that drop tokens between the layers; of eight layers, so that there is something to drop.
constexpr int32_t kManyLayers = 8;

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

  std::unique_ptr<Engine> engine_ = make_engine(kManyLayers);
  std::vector<float> logits_;
};

TEST_P(EveryRowDropper, MeetsItsBudgetInOrder) {
  for (const auto& [budget, mean] : {std::pair{"0.7", 105}, std::pair{"0.873", 131}, std::pair{"121", 121}}) {
    const auto s = computed(with_image(*engine_), budget, 64);
    const Kept kept = kept_tokens(*s);
    EXPECT_EQ(n_slots(kept), int64_t{mean} * kManyLayers * kKvHeads) << budget;
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

TEST_P(EveryRowDropper, KeepsTheSameWhateverTheChunk) {
  const Prompt prompt = with_image(*engine_);
  for (const char* budget : {"", "0.7"}) {
    const Kept whole = kept_tokens(*computed(prompt, budget, 512));
    for (const int32_t chunk : {64, 7}) EXPECT_EQ(kept_tokens(*computed(prompt, budget, chunk)), whole) << chunk;
  }
}

TEST_P(EveryRowDropper, AFullBudgetIsFull) {
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
TEST_P(EveryRowDropper, TakesOddPrompts) {
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

// An answer goes on at the true positions, over what each layer has.
TEST_P(EveryRowDropper, GoesOnWithAnAnswer) {
  const auto s = computed(with_image(*engine_), "", 64);
  const Kept kept = kept_tokens(*s);
  for (int i = 0; i < 70; ++i) {
    s->add_token(i % kVocab);
    EXPECT_EQ(s->tokens().back().meta.t, 150 + i);
    for (const float x : compute(*engine_, *s, 1)) ASSERT_TRUE(std::isfinite(x));
  }
  const bool own_rule = s->policy().has_rule();  // after 64 tokens as many as behind the prompt, then 6 more
  for (int32_t layer = 0; layer < kManyLayers; ++layer) {
    const auto n = static_cast<int32_t>(kept[static_cast<size_t>(layer)][0].size());
    EXPECT_EQ(s->n_visible(layer, 1), n + (own_rule ? 6 : 70)) << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryRowDropper, testing::ValuesIn(row_droppers()));

// Evicting chunk by chunk holds a chunk and a budget's worth at most, and ends with the budget.
TEST_P(EveryPolicy, EvictsWhileThePromptIsRead) {
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
    for (int32_t i = 0; i < kLayers * kKvHeads; ++i) n += s->n_visible(i / kKvHeads, i % kKvHeads);
    const int32_t n_draft = s->rehearsing() ? 64 : 0;
    EXPECT_LE(n, int64_t{64 + 30 + n_draft} * kLayers * kKvHeads);
  }
  EXPECT_EQ(n_slots(kept_tokens(*s)), 30 * kLayers * kKvHeads);
  EXPECT_LT(s->peak_kv_bytes(), engine_->new_sequence(prompt, policy)->cache().page_bytes(0) * kLayers * kKvHeads * 4);
  s->release();  // and from the start once more
  compute(*engine_, *s, 100);
  EXPECT_EQ(n_slots(kept_tokens(*s)), 30 * kLayers * kKvHeads);
}

// Pages of what is left never exceed a budget in bytes, and use what they may.
TEST(ByteBudget, IsNeverExceeded) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  const Prompt prompt = with_image(*engine, 300);
  const auto page = engine->new_sequence(prompt, parse_policy("full"))->cache().page_bytes(0);
  for (const char* policy : {"post_vision+uniform", "vlcache", "adakv", "snapkv+zigzag"}) {
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
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
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

// Policies in which each head has a rule of its own; head scores of the small engines here, a head or two of each
// layer.
class EveryHeadRule : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    std::ofstream(testing::TempDir() + "head_rules.json")
        << R"({"echo": [[0.1, 0.9], [0.2, 0.3], [0, 0]], "induction": [[0.2, 0.1], [0.9, 0.4], [0.1, 0.8]]})";
  }
  // The policy with `parameters`; where it goes by head scores, with a file of them.
  static PolicyPtr policy(const std::string& parameters) {
    const bool by_heads = GetParam() != "fastgen";
    return parse_policy(GetParam() + ":" + parameters +
                        (by_heads ? ",heads=" + testing::TempDir() + "head_rules.json" : ""));
  }
  // One that drops much of 150 tokens, one that drops nothing.
  static PolicyPtr small() {
    return policy(GetParam() == "fastgen" ? "t=0.3,frequent=0.2,local=0.2"
                  : GetParam() == "razor" ? "sinks=2,window=20,ratio=100"
                                          : "sinks=2,recent=20");
  }
  static PolicyPtr whole() {
    return policy(GetParam() == "fastgen" ? "t=1" : GetParam() == "razor" ? "window=4000" : "sparsity=0");
  }
  std::unique_ptr<Engine> engine_ = make_engine(kLayers);
};

TEST_P(EveryHeadRule, KeepsLessInOrderWhateverTheChunk) {
  const Prompt prompt = with_image(*engine_);
  const auto a = engine_->new_sequence(prompt, small()), b = engine_->new_sequence(prompt, small());
  compute(*engine_, *a, 512);
  for (const float x : compute(*engine_, *b, 7)) EXPECT_TRUE(std::isfinite(x));
  EXPECT_LT(n_slots(kept_tokens(*a)), 150 * kLayers * kKvHeads);
  EXPECT_NEAR(static_cast<double>(n_slots(kept_tokens(*a))), static_cast<double>(n_slots(kept_tokens(*b))), 8);
  for (const auto& layer : kept_tokens(*a)) {
    for (std::vector<int32_t> head : layer) {
      ASSERT_FALSE(head.empty());
      for (int32_t& t : head) t = t < 0 ? -1 - t : t;  // a merged slot stands where its first source stood
      EXPECT_TRUE(std::ranges::is_sorted(head));
    }
  }
}

TEST_P(EveryHeadRule, KeepingEverythingIsFull) {
  const Prompt prompt = with_image(*engine_);
  const auto a = engine_->new_sequence(prompt, whole()), b = engine_->new_sequence(prompt, parse_policy("full"));
  for (Sequence* s : {a.get(), b.get()}) compute(*engine_, *s, 64);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(kept_tokens(*a), kept_tokens(*b));
    for (Sequence* s : {a.get(), b.get()}) s->add_token(i);
    EXPECT_EQ(compute(*engine_, *a, 1), compute(*engine_, *b, 1));
  }
}

TEST_P(EveryHeadRule, TakesOddPrompts) {
  for (const Prompt& prompt :
       {with_image(*engine_, 1, 0, 0), with_image(*engine_, 1, 0, 1), with_image(*engine_, 70, 0, 70),
        with_image(*engine_, 70, 0, 0), with_image(*engine_, 3, 1, 2)}) {
    const auto s = engine_->new_sequence(prompt, small());
    for (const float x : compute(*engine_, *s, 512)) EXPECT_TRUE(std::isfinite(x));
    for (int i = 0; i < 3; ++i) {
      s->add_token(i);
      for (const float x : compute(*engine_, *s, 512)) EXPECT_TRUE(std::isfinite(x));
    }
    for (int32_t i = 0; i < kLayers * kKvHeads; ++i) EXPECT_GT(s->n_visible(i / kKvHeads, i % kKvHeads), 0);
  }
}

TEST_P(EveryHeadRule, GoesOnInASecondTurn) {
  const auto s = engine_->new_sequence(with_image(*engine_), small());
  compute(*engine_, *s, 64);
  s->add_token(5);
  compute(*engine_, *s, 64);
  std::vector<int32_t> ids = random_tokens(150);
  ids.push_back(5);
  const std::vector<int32_t> more = random_tokens(49, 11);
  ids.insert(ids.end(), more.begin(), more.end());
  Prompt prompt = engine_->prepare_tokens(ids);
  Prompt first = with_image(*engine_);
  prompt.spans = first.spans;
  prompt.images = std::move(first.images);
  EXPECT_EQ(s->continue_with(prompt), 151);
  if (GetParam() == "fastgen") {
    EXPECT_THROW(compute(*engine_, *s, 64), StepFailed);  // nobody computes the first turn's queries again
    return;
  }
  compute(*engine_, *s, 64);
  EXPECT_EQ(s->n_visible(0, 0), GetParam() == "razor" ? 2 + 1 + 20 : 2 + 20);
  EXPECT_EQ(s->n_visible(0, 1), 200);
}

// What is kept of a question that a policy does not know; and chunk by chunk, where it needs no attention.
TEST_P(EveryHeadRule, ActsBeforeTheQuestionAndWhileThePromptIsRead) {
  Prompt prompt = with_image(*engine_, 150, 30, 100);
  prompt.query_aware = false;
  const auto s = engine_->new_sequence(prompt, small());
  compute(*engine_, *s, 64);
  for (const auto& layer : kept_tokens(*s)) {
    for (const auto& head : layer) EXPECT_GE(std::ranges::count_if(head, [](int32_t t) { return t >= 100; }), 20);
  }
  Prompt cut = with_image(*engine_, 300, 30, 200);
  cut.evict_every = 64;
  const auto c = engine_->new_sequence(cut, small());
  if (GetParam() == "fastgen") {
    EXPECT_THROW(compute(*engine_, *c, 100), StepFailed);
    return;
  }
  compute(*engine_, *c, 100);
  EXPECT_EQ(c->n_visible(0, 0), GetParam() == "razor" ? 2 + 1 + 20 : 2 + 20);
}

// Beside others, whose tokens are as if they were alone.
TEST_P(EveryHeadRule, SharesABatch) {
  const auto request = [&](const PolicyPtr& policy) {
    Request r;
    r.prompt = engine_->prepare_tokens(random_tokens(150));
    r.policy = policy;
    r.options.max_tokens = 90;
    r.options.ignore_eos = true;
    return r;
  };
  const auto ids = [](const GenerateResult& r) {
    EXPECT_FALSE(r.error);
    std::vector<int32_t> ids;
    for (const GeneratedToken& t : r.tokens) ids.push_back(t.id);
    return ids;
  };
  const std::vector<PolicyPtr> policies{small(), parse_policy("full"), parse_policy("post_vision/h2o", "0.2"), whole()};
  std::vector<Request> together;
  for (const PolicyPtr& p : policies) together.push_back(request(p));
  const std::vector<GenerateResult> results = generate(*engine_, std::move(together));
  for (size_t i = 0; i < policies.size(); ++i) {
    EXPECT_EQ(ids(results[i]), ids(generate(*engine_, request(policies[i])))) << policies[i]->name();
  }
  EXPECT_EQ(ids(results[1]), ids(results[3]));
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryHeadRule, testing::Values("fastgen", "razor", "duo"),
                         [](const auto& info) { return info.param; });

// While an answer of 200 tokens grows, what leaves the window joins the slot that stands for the others: together the
// slots always stand for all tokens, and in the first layer, whose keys no eviction changes, it is their mean.
TEST(RazorPolicy, LosesNoTokenWhileDecoding) {
  const std::string file = testing::TempDir() + "razor_heads.json";
  std::ofstream(file) << R"({"echo": [[0, 1], [0, 0]], "induction": [[0, 0], [1, 0]]})";
  const std::unique_ptr<Engine> engine = make_engine(2, "ref");
  const auto s = make_sequence(*engine, random_tokens(100), "razor:sinks=2,window=10,ratio=20,heads=" + file);
  const auto full = make_sequence(*engine, random_tokens(100));
  for (Sequence* x : {s.get(), full.get()}) compute(*engine, *x, 64);
  for (int step = 0; step < 200; ++step) {
    for (Sequence* x : {s.get(), full.get()}) {
      x->add_token(step % kVocab);
      compute(*engine, *x, 1);
    }
    const int n = 101 + step;
    EXPECT_EQ(s->n_visible(0, 1), n);
    ASSERT_LE(s->n_visible(0, 0), 2 + 1 + std::max(10, n / 20) + kPageSlots);
    double stands_for = 0;
    for (const float b : s->slots().bias(0, 0)) stands_for += std::exp(double{b});
    ASSERT_NEAR(stands_for, n, 1e-3);
  }
  const int32_t n_joined = 300 - s->n_visible(0, 0) - 1 + 2;  // tokens 2 .. n_joined
  std::vector<float> all(300 * kHeadDim), kept(static_cast<size_t>(s->n_visible(0, 0)) * kHeadDim);
  full->slots().read(0, 0, Tensor(all.data(), DType::kF32, {300, kHeadDim}), Tensor());
  s->slots().read(0, 0, Tensor(kept.data(), DType::kF32, {s->n_visible(0, 0), kHeadDim}), Tensor());
  for (size_t c = 0; c < kHeadDim; ++c) {
    double mean = 0;
    for (int32_t t = 2; t <= n_joined + 1; ++t) mean += all[static_cast<size_t>(t) * kHeadDim + c] / double(n_joined);
    EXPECT_NEAR(kept[2 * kHeadDim + c], mean, 1e-4) << c;
  }
}

TEST(DuoPolicy, SlidesWhileDecodingAndFreesPages) {
  const std::string file = testing::TempDir() + "duo_heads.tsv";
  std::ofstream(file) << "0\t1\n1\t0.5\n";
  const std::unique_ptr<Engine> engine = make_engine(2);
  const auto s = make_sequence(*engine, random_tokens(100), "duo:sinks=3,recent=30,threshold=0.6,heads=" + file);
  compute(*engine, *s, 64);
  for (int step = 0; step < 200; ++step) {
    EXPECT_EQ(s->n_visible(0, 0), 33);
    EXPECT_EQ(s->n_visible(1, 1), 33);
    EXPECT_EQ(s->n_visible(1, 0), 100 + step);
    ASSERT_LE(s->cache().n_slots(0, 0), 33 + kPageSlots);
    s->add_token(step % kVocab);
    compute(*engine, *s, 1);
  }
  EXPECT_EQ(s->cache().slot_tokens(0, 0)[2], 2);
  EXPECT_EQ(s->cache().slot_tokens(0, 0).back(), 299);
}

TEST(HeadFilesOfAnotherModel, FailTheRequest) {
  const std::string file = testing::TempDir() + "three_layers.tsv";
  std::ofstream(file) << "0\t1\n1\t0.5\n0\t0\n";
  const std::unique_ptr<Engine> engine = make_engine(2);
  Request request;
  request.prompt = engine->prepare_tokens(random_tokens(10));
  request.policy = parse_policy("duo:heads=" + file);
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  const GenerateResult result = std::move(generate(*engine, std::move(requests))[0]);
  ASSERT_TRUE(result.error);
  EXPECT_NE(std::string(result.error->what()).find("scores of 3 layers"), std::string::npos);
}

}  // namespace
}  // namespace vlcache
