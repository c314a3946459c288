// Prompts that begin the same: the same answers as without a cache, prefixes of the right length, and no page lost.
#include "engine/reuse/prefix_reuse.h"

#include <gmock/gmock.h>

#include "base/os/resident_testing.h"
#include "engine/engine_caches.h"
#include "engine/scheduler/accounting_testing.h"

namespace vlcache {
namespace {

constexpr int64_t kCacheBytes = 8 << 20;

class PrefixReuseTest : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> engine(int64_t cache_bytes = kCacheBytes, int64_t kv_memory_bytes = 64 << 20) {
    return make_engine(2, "auto", kv_memory_bytes, GetParam(), 4096, cache_bytes);
  }
};

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_P(PrefixReuseTest, MatchesPromptsAndAnswersToTheToken) {
  const std::unique_ptr<Engine> e = engine();
  const std::vector<int32_t> first = random_tokens(200);
  const std::vector<int32_t> answer = answer_alone(*e, first);
  const auto ask = [&](const std::vector<int32_t>& tokens) {
    const GenerateResult result = generate(*e, prefix_request(*e, tokens));
    EXPECT_EQ(ids_of(result), answer_alone(*e, tokens));
    return result.cache.n_prefix_tokens;
  };
  EXPECT_EQ(ask(first), 0);
  EXPECT_EQ(ask(first), 199);  // the last one's logits are needed
  const std::vector<int32_t> other = random_tokens(70, 11);
  std::vector<int32_t> parts{first.begin(), first.begin() + 131};
  parts.push_back((first[131] + 1) % kVocab);
  EXPECT_EQ(ask(joined(parts, other)), 131);
  // the answer's last token was never computed
  EXPECT_EQ(ask(joined(joined(first, answer), other)), 200 + std::ssize(answer) - 1);
  EXPECT_EQ(ask({first.begin(), first.begin() + 40}), 39);
  std::vector<int32_t> strange = first;
  strange[0] = (first[0] + 1) % kVocab;
  EXPECT_EQ(ask(strange), 0);
  expect_no_page_lost(*e);
}

TEST_P(PrefixReuseTest, RequestForAllLogitsIsComputedInFull) {
  const std::unique_ptr<Engine> e = engine();
  generate(*e, prefix_request(*e, random_tokens(100)));
  Request asked = prefix_request(*e, random_tokens(100));
  int32_t n = 0;
  asked.callbacks.on_logits = [&](int32_t, const Tensor& logits) { n += static_cast<int32_t>(logits.rows()); };
  EXPECT_EQ(generate(*e, std::move(asked)).cache.n_prefix_tokens, 0);
  EXPECT_EQ(n, 100);
}

TEST_P(PrefixReuseTest, ZeroBudgetCachesNothing) {
  const std::unique_ptr<Engine> e = engine(/*cache_bytes=*/0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(generate(*e, prefix_request(*e, random_tokens(100))).cache.n_prefix_tokens, 0);
  EXPECT_EQ(e->pools().used_bytes(), 0);
}

TEST_P(PrefixReuseTest, RunningSequencesEvictCachedPrefixes) {
  // Room for about 400 tokens, all of which the cache may have.
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(64 << 20, 7 * group);
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const std::vector<int32_t> tokens = random_tokens(seed % 2 == 0 ? 150 : 330, seed);
    EXPECT_EQ(ids_of(generate(*e, prefix_request(*e, tokens))), answer_alone(*e, tokens)) << seed;
  }
  EXPECT_GT(e->caches().usual().prefixes().stats().n_evictions, 0);
  expect_no_page_lost(*e);
}

TEST_P(PrefixReuseTest, CompressedPromptsAreCachedOnlyWithTheirExactKv) {
  for (const bool keep_exact : {false, true}) {
    const std::unique_ptr<Engine> e = engine();
    std::vector<GenerateResult> results;
    for (int i = 0; i < 3; ++i) {
      Request asked = prefix_request(*e, random_tokens(200), "snapkv:w=16", "0.25");
      asked.reuse.keep_exact = keep_exact;
      results.push_back(generate(*e, std::move(asked)));
      EXPECT_EQ(ids_of(results[i]), ids_of(results[0]));
      EXPECT_EQ(results[i].kv.slots, results[0].kv.slots);
      // the window's 16 rows are computed, for their attention
      EXPECT_EQ(results[i].cache.n_prefix_tokens, keep_exact && i > 0 ? 184 : 0);
    }
    // What was kept is what any other policy computes, too.
    const GenerateResult full = generate(*e, prefix_request(*e, random_tokens(200)));
    EXPECT_EQ(ids_of(full), answer_alone(*e, random_tokens(200)));
    EXPECT_EQ(full.cache.n_prefix_tokens, keep_exact ? 192 : 0);
    expect_no_page_lost(*e);
  }
}

// What a policy leaves may look like a shorter prompt: the first tokens, one slot each. It is not: none of it is
// cached, and an image computed after it is no origin for others.
TEST_P(PrefixReuseTest, EvictedPromptIsNotCachedAsAShorterOne) {
  for (const int32_t n_prompt : {40, 64, 200}) {
    const std::unique_ptr<Engine> e = engine();
    const std::vector<int32_t> tokens = random_tokens(n_prompt);
    Request asked = prefix_request(*e, tokens, "expected_attention@kvpress", "4");
    asked.options.max_tokens = 1;
    const GenerateResult result = generate(*e, std::move(asked));
    EXPECT_THAT(result.kv.slots, testing::Each(testing::Each(4)));
    EXPECT_EQ(e->caches().usual().prefixes().bytes(), 0);
    const GenerateResult full = generate(*e, prefix_request(*e, tokens));
    EXPECT_EQ(full.cache.n_prefix_tokens, 0);
    EXPECT_EQ(ids_of(full), answer_alone(*e, tokens));

    auto s = make_sequence(*e, tokens, "expected_attention@kvpress", "4");
    EXPECT_TRUE(s->exact());
    compute(*e, *s, 64);
    EXPECT_EQ(s->cache().n_slots(0, 0), 4);
    EXPECT_FALSE(s->exact());
    s.reset();
    expect_no_page_lost(*e);
  }
}

TEST_P(PrefixReuseTest, PoliciesThatNeedEveryTokenSkipThePrefixCache) {
  const std::unique_ptr<Engine> e = engine();
  generate(*e, prefix_request(*e, random_tokens(200)));
  for (const char* policy : {"h2o", "expected_attention", "streaming", "none", "static"}) {
    const GenerateResult result = generate(*e, prefix_request(*e, random_tokens(200), policy));
    EXPECT_EQ(result.cache.n_prefix_tokens, 0) << policy;
    EXPECT_NE(result.cache.prefix_reason, "") << policy;
  }
}

// A prompt that was requested twice outlives any number of prompts that are requested once.
TEST_P(PrefixReuseTest, SingleUsePromptsDoNotEvictRepeatedOnes) {
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(16 * group);
  const std::vector<int32_t> often = random_tokens(200, 99);
  for (int i = 0; i < 3; ++i) generate(*e, prefix_request(*e, often));
  int64_t n_kept = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    generate(*e, prefix_request(*e, random_tokens(150, seed)));
    n_kept += generate(*e, prefix_request(*e, often)).cache.n_prefix_tokens == 199 ? 1 : 0;
  }
  EXPECT_EQ(n_kept, 20);
  EXPECT_GT(e->caches().usual().prefixes().stats().n_evictions, 0);
  expect_no_page_lost(*e);
}

// Prompts of other lengths are cached and evicted, some stay: the memory that the cache may have does not grow.
TEST_P(PrefixReuseTest, EvictedPagesAreReturnedToTheSystem) {
  if (only_ref()) GTEST_SKIP() << "sanitizers have memory of their own";
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(32 * group, 2000 * group);
  const auto ask = [&](uint32_t seed) {
    Request asked = prefix_request(*e, random_tokens(100 + static_cast<int32_t>(seed % 7) * 80, seed));
    asked.options.max_tokens = 1;
    generate(*e, std::move(asked));
  };
  for (uint32_t seed = 0; seed < 10; ++seed) ask(seed);
  const int64_t before = resident_bytes();
  for (uint32_t seed = 10; seed < 300; ++seed) ask(seed);
  EXPECT_LT(resident_bytes() - before, 150 * group);
}

// Many prompts that share beginnings, several at a time, with room for a part of them.
TEST_P(PrefixReuseTest, RandomMixMatchesAnswersWithoutCache) {
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(10 * group, 24 * group), reference = engine(0);
  std::mt19937 random(3);
  std::map<std::vector<int32_t>, std::vector<int32_t>> known;
  Scheduler scheduler(*e);
  Accounts accounts(*e);
  std::map<RequestId, std::vector<int32_t>> running;
  int64_t n_found = 0;
  const int n_requests = only_ref() ? 40 : 150;
  for (int i = 0; i < n_requests || !running.empty();) {
    while (running.size() < 3 && i < n_requests) {
      std::vector<int32_t> tokens = random_tokens(40 + static_cast<int32_t>(random() % 3) * 50, random() % 2);
      tokens = joined(tokens, random_tokens(static_cast<int32_t>(random() % 90), 20 + random() % 3));
      const bool full = random() % 4 > 0;
      Request asked = prefix_request(*e, tokens, full ? "full" : "snapkv:w=8", full ? "" : "0.9");
      if (!full) asked.options.max_tokens = 1;  // chosen before anything is evicted
      running[scheduler.add(std::move(asked))] = std::move(tokens);
      ++i;
    }
    if (random() % 40 == 0) scheduler.cancel(running.begin()->first);
    scheduler.step();
    accounts.check(scheduler);
    for (auto at = running.begin(); at != running.end();) {
      if (!scheduler.done(at->first)) {
        ++at;
        continue;
      }
      const GenerateResult result = scheduler.remove(at->first);
      ASSERT_FALSE(result.error) << result.error->what();
      std::vector<int32_t>& expected = known[at->second];
      if (expected.empty()) expected = answer_alone(*reference, at->second);
      const std::vector<int32_t> found = ids_of(result);
      if (result.finish_reason != FinishReason::kCancelled && result.kv.mode == "full") {
        EXPECT_EQ(found.size(), expected.size());
      }
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin()));
      n_found += result.cache.n_prefix_tokens;
      at = running.erase(at);
    }
  }
  EXPECT_GT(accounts.n_seen_shared, 0);
  EXPECT_GT(n_found, 1000);
  EXPECT_GT(e->caches().usual().prefixes().stats().n_evictions, 0);
  expect_no_page_lost(*e);
}

INSTANTIATE_TEST_SUITE_P(, PrefixReuseTest, testing::Values("llama", "mistral", "qwen3_vl_text"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace vlcache
