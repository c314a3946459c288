// Properties of every policy in which each head has a rule of its own.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

constexpr int32_t kHeadRuleLayers = 3;

// With head scores of the small engines here, a head or two of each layer.
class EveryHeadRule : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    std::ofstream(testing::TempDir() + "head_rules.json")
        << R"({"echo": [[0.1, 0.9], [0.2, 0.3], [0, 0]], "induction": [[0.2, 0.1], [0.9, 0.4], [0.1, 0.8]]})";
  }
  // The policy with `parameters`; with a file of head scores if it uses them.
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
  std::unique_ptr<Engine> engine_ = make_engine(kHeadRuleLayers);
};

TEST_P(EveryHeadRule, KeepsFewerSlotsInOrderForAnyChunk) {
  const Prompt prompt = with_image(*engine_);
  const auto a = engine_->new_sequence(prompt, small()), b = engine_->new_sequence(prompt, small());
  compute(*engine_, *a, 512);
  for (const float x : compute(*engine_, *b, 7)) EXPECT_TRUE(std::isfinite(x));
  EXPECT_LT(n_slots(kept_tokens(*a)), 150 * kHeadRuleLayers * kKvHeads);
  EXPECT_NEAR(static_cast<double>(n_slots(kept_tokens(*a))), static_cast<double>(n_slots(kept_tokens(*b))), 8);
  for (const auto& layer : kept_tokens(*a)) {
    for (std::vector<int32_t> head : layer) {
      ASSERT_FALSE(head.empty());
      for (int32_t& t : head) t = t < 0 ? -1 - t : t;  // a merged slot stands where its first source stood
      EXPECT_TRUE(std::ranges::is_sorted(head));
    }
  }
}

TEST_P(EveryHeadRule, KeepingEverythingEqualsFull) {
  const Prompt prompt = with_image(*engine_);
  const auto a = engine_->new_sequence(prompt, whole()), b = engine_->new_sequence(prompt, parse_policy("full"));
  for (Sequence* s : {a.get(), b.get()}) compute(*engine_, *s, 64);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(kept_tokens(*a), kept_tokens(*b));
    for (Sequence* s : {a.get(), b.get()}) s->add_token(i);
    EXPECT_EQ(compute(*engine_, *a, 1), compute(*engine_, *b, 1));
  }
}

TEST_P(EveryHeadRule, HandlesUnusualPrompts) {
  for (const Prompt& prompt :
       {with_image(*engine_, 1, 0, 0), with_image(*engine_, 1, 0, 1), with_image(*engine_, 70, 0, 70),
        with_image(*engine_, 70, 0, 0), with_image(*engine_, 3, 1, 2)}) {
    const auto s = engine_->new_sequence(prompt, small());
    for (const float x : compute(*engine_, *s, 512)) EXPECT_TRUE(std::isfinite(x));
    for (int i = 0; i < 3; ++i) {
      s->add_token(i);
      for (const float x : compute(*engine_, *s, 512)) EXPECT_TRUE(std::isfinite(x));
    }
    for (int32_t i = 0; i < kHeadRuleLayers * kKvHeads; ++i) EXPECT_GT(s->n_visible(i / kKvHeads, i % kKvHeads), 0);
  }
}

TEST_P(EveryHeadRule, ContinuesInASecondTurn) {
  const auto s = engine_->new_sequence(with_image(*engine_), small());
  compute(*engine_, *s, 64);
  s->add_token(5);
  compute(*engine_, *s, 64);
  const Prompt prompt = second_turn(*engine_);
  EXPECT_EQ(s->continue_with(prompt), 151);
  if (GetParam() == "fastgen") {
    EXPECT_THROW(compute(*engine_, *s, 64), StepFailed);  // the first turn's queries are not computed again
    return;
  }
  compute(*engine_, *s, 64);
  EXPECT_EQ(s->n_visible(0, 0), GetParam() == "razor" ? 2 + 1 + 20 : 2 + 20);
  EXPECT_EQ(s->n_visible(0, 1), 200);
}

// What is kept of a question that a policy does not know; and chunk by chunk, where it needs no attention.
TEST_P(EveryHeadRule, ActsBeforeTheQuestionAndDuringPrefill) {
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

// Beside other requests, whose tokens are as if they were alone.
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
TEST(RazorPolicy, DecodingEvictsNoToken) {
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
