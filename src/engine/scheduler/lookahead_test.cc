// The waiting queue: its order, what is held for its requests, and prompts that start together, which are computed
// once.
#include <deque>
#include <map>

#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/waiting_prompt.h"
#include "reuse/prefix/prefix_cache.h"

namespace vlcache {
namespace {

constexpr int64_t kCacheLimit = 8 << 20, kPoolBytes = 64 << 20;

std::unique_ptr<Engine> engine(int64_t cache_bytes = kCacheLimit, int64_t kv_memory_bytes = kPoolBytes) {
  return make_engine(2, "auto", kv_memory_bytes, "llama", 4096, cache_bytes);
}

// A prefix that several prompts share, and the question after it.
std::vector<int32_t> document(int32_t n, uint32_t seed, uint32_t question, int32_t n_question = 10) {
  std::vector<int32_t> tokens = random_tokens(n, seed);
  const std::vector<int32_t> rest = random_tokens(n_question, 1000 + question);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

// Steps until the request is done; no budget of bytes is ever exceeded.
GenerateResult finish(Engine& engine, Scheduler& scheduler, RequestId id) {
  while (!scheduler.done(id)) {
    scheduler.step();
    EXPECT_LE(engine.pools().used_bytes(), engine.pools().max_bytes());
    EXPECT_LE(engine.caches().usual().prefixes().bytes(), engine.pools().used_bytes());
    EXPECT_LE(engine.caches().cache_budget().used_bytes(), engine.caches().cache_budget().max_bytes());
  }
  return scheduler.remove(id);
}

// ---- prompts that start together ------------------------------------------------------------------------------------

TEST(CommonPrefix, IsComputedOnce) {
  const std::unique_ptr<Engine> e = engine();
  const std::vector<int32_t> tokens = random_tokens(200);
  const std::vector<std::vector<int32_t>> prompts{tokens, tokens, document(150, 7, 1, 60), document(40, 7, 2, 100),
                                                  tokens};
  std::vector<Request> requests;
  for (const auto& prompt : prompts) requests.push_back(prefix_request(*e, prompt));
  const std::vector<GenerateResult> results = generate(*e, std::move(requests));
  // 200, 150 and 40 tokens in common: whole pages of what is computed together; no request waits for 40
  const std::vector<int32_t> found{0, 192, 150, 0, 192};
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(ids_of(results[i]), answer_alone(*e, prompts[i])) << i;
    EXPECT_EQ(results[i].cache.n_prefix_tokens, found[i]) << i;
  }
  expect_no_page_lost(*e);
}

// Which of the requests have computed something after the first step.
std::vector<bool> computed_at_once(Engine& engine, std::vector<Request> requests) {
  Scheduler scheduler(engine);
  std::vector<int32_t> n_done(requests.size(), 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].callbacks.on_prefill = [&n_done, i](int32_t done, int32_t) { n_done[i] = done; };
    scheduler.add(std::move(requests[i]));
  }
  scheduler.step();
  std::vector<bool> computed;
  for (const int32_t n : n_done) computed.push_back(n > 0);
  while (scheduler.step()) {
  }
  return computed;
}

TEST(CommonPrefix, UncachedOneIsNotAwaited) {
  const auto first_and_second = [](Engine& e, Request first) {
    std::vector<Request> both;
    both.push_back(std::move(first));
    both.push_back(prefix_request(e, random_tokens(200)));
    const std::vector<bool> computed = computed_at_once(e, std::move(both));
    EXPECT_TRUE(computed[0]);
    return computed[1];
  };
  const std::unique_ptr<Engine> e = engine();
  EXPECT_FALSE(first_and_second(*e, prefix_request(*e, random_tokens(200))));
  e->caches().usual().prefixes().clear();
  EXPECT_TRUE(first_and_second(*e, prefix_request(*e, random_tokens(200, 8))));  // another prompt
  e->caches().usual().prefixes().clear();
  EXPECT_TRUE(first_and_second(*e, prefix_request(*e, random_tokens(200), "snapkv:w=16", "0.25")));
  e->caches().usual().prefixes().clear();
  EXPECT_TRUE(first_and_second(*e, prefix_request(*e, random_tokens(200), "static")));
  e->caches().usual().prefixes().clear();
  EXPECT_TRUE(first_and_second(*e, prefix_request(*e, random_tokens(200), "streaming")));
  Request off = prefix_request(*e, random_tokens(200));
  off.reuse.prefix = false;
  e->caches().usual().prefixes().clear();
  EXPECT_TRUE(first_and_second(*e, std::move(off)));
  Request exact = prefix_request(*e, random_tokens(200), "snapkv:w=16", "0.25");
  exact.reuse.keep_exact = true;
  e->caches().usual().prefixes().clear();
  EXPECT_FALSE(first_and_second(*e, std::move(exact)));
  const std::unique_ptr<Engine> no_room = engine(/*cache_bytes=*/0);
  EXPECT_TRUE(first_and_second(*no_room, prefix_request(*no_room, random_tokens(200))));
}

// The first request ends while its prompt is computed, three steps long: the second continues from what is left of it.
TEST(CommonPrefix, AwaitedRequestCanEnd) {
  const std::vector<int32_t> tokens = random_tokens(330);
  for (const bool fails : {false, true}) {
    const std::unique_ptr<Engine> e = engine();
    Scheduler scheduler(*e, {.prefill_chunk = 128});
    Request first = prefix_request(*e, tokens);
    if (fails) first.callbacks.on_prefill = [](int32_t, int32_t) { throw Error(ErrorCode::kIo, "gone"); };
    const RequestId a = scheduler.add(std::move(first)), b = scheduler.add(prefix_request(*e, tokens)),
                    c = scheduler.add(prefix_request(*e, tokens));
    scheduler.step();
    if (!fails) scheduler.cancel(a);
    EXPECT_TRUE(scheduler.done(a));
    const GenerateResult second = finish(*e, scheduler, b), third = finish(*e, scheduler, c);
    EXPECT_EQ(second.cache.n_prefix_tokens, fails ? 0 : 128);  // what a cancelled request has computed is kept
    EXPECT_EQ(third.cache.n_prefix_tokens, 320);
    EXPECT_EQ(scheduler.remove(a).finish_reason, fails ? FinishReason::kError : FinishReason::kCancelled);
    for (const GenerateResult* result : {&second, &third}) EXPECT_EQ(ids_of(*result), answer_alone(*e, tokens));
    expect_no_page_lost(*e);
  }
}

// The first request is preempted in the middle: the others do not wait for it then.
TEST(CommonPrefix, AwaitedRequestCanBePreempted) {
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(64 << 20, 12 * group);
  std::vector<Request> requests;
  const std::vector<std::vector<int32_t>> prompts{random_tokens(300, 1), random_tokens(600, 2), random_tokens(600, 2),
                                                  random_tokens(300, 1)};
  for (const auto& prompt : prompts) requests.push_back(prefix_request(*e, prompt));
  const std::vector<GenerateResult> results = generate(*e, std::move(requests));
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(ids_of(results[i]), answer_alone(*e, prompts[i])) << i;
  EXPECT_GT(results[2].cache.n_prefix_tokens + results[3].cache.n_prefix_tokens, 0);
  expect_no_page_lost(*e);
}

// ---- what is cached of a prompt, and held ---------------------------------------------------------------------------

// As a request for the tokens would be queued.
struct Waiting {
  Waiting(Engine& engine, std::vector<int32_t> tokens, bool reuse = true)
      : request(prefix_request(engine, std::move(tokens))),
        prompt(engine, engine.caches().usual(), this->request.prompt, images, *this->request.policy, {.prefix = reuse},
               tiers, /*n_done=*/0) {}
  Request request;
  PromptImages images;  // none
  ImageSearch tiers;    // no tier has any image
  WaitingPrompt prompt;
};

TEST(WaitingPromptTest, ReportsItsCachedPrefix) {
  const std::unique_ptr<Engine> e = engine();
  Waiting waiting(*e, document(200, 7, 1, 60)), off(*e, document(200, 7, 1, 60), /*reuse=*/false);
  EXPECT_EQ(waiting.prompt.n_matched(), 0);
  generate(*e, prefix_request(*e, document(200, 7, 2)));
  EXPECT_EQ(waiting.prompt.n_matched(), 200);
  EXPECT_EQ(off.prompt.n_matched(), 0);
  e->caches().usual().prefixes().clear();
  EXPECT_EQ(waiting.prompt.n_matched(), 0);
}

TEST(WaitingPromptTest, HoldKeepsTheCachedPrefix) {
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(8 * group);
  auto flood = [&, seed = 50u]() mutable {
    for (int i = 0; i < 10; ++i) generate(*e, prefix_request(*e, random_tokens(200, seed++)));
  };
  generate(*e, prefix_request(*e, document(200, 7, 2)));
  {
    Waiting waiting(*e, document(200, 7, 1, 60));
    waiting.prompt.hold();
    flood();
    EXPECT_GT(e->caches().usual().prefixes().stats().n_evictions, 0);
    EXPECT_EQ(waiting.prompt.n_matched(), 200);
  }
  flood();
  EXPECT_EQ(Waiting(*e, document(200, 7, 1, 60)).prompt.n_matched(), 0);
  expect_no_page_lost(*e);
}

TEST(WaitingPromptTest, RunningRequestsEvictHeldPrefixes) {
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(64 << 20, 12 * group);
  generate(*e, prefix_request(*e, document(200, 7, 2)));
  Waiting waiting(*e, document(200, 7, 1, 60));
  waiting.prompt.hold();
  const GenerateResult large = generate(*e, prefix_request(*e, random_tokens(12 * kPageSlots - 10, 5)));
  EXPECT_FALSE(large.error);
  EXPECT_EQ(large.tokens.size(), 6u);
  EXPECT_EQ(waiting.prompt.n_matched(), 0);
  waiting.prompt.hold();
  expect_no_page_lost(*e);
}

// ---- which request is next ------------------------------------------------------------------------------------------

TEST(WaitingQueue, LongestCachedPrefixIsAdmittedFirst) {
  const std::unique_ptr<Engine> e = engine();
  Scheduler scheduler(*e, {.max_running = 1});
  std::vector<int> order;
  std::map<int, RequestId> ids;
  int i = 0;
  for (const uint32_t seed : {1, 2, 3, 1, 2, 1}) {
    Request asked = prefix_request(*e, document(150, seed, static_cast<uint32_t>(i)));
    asked.callbacks.on_prefill = [&order, i](int32_t, int32_t) { order.push_back(i); };
    ids[i++] = scheduler.add(std::move(asked));
  }
  for (const int last : {5, 4, 2}) finish(*e, scheduler, ids[last]);
  EXPECT_EQ(order, (std::vector<int>{0, 3, 5, 1, 4, 2}));
}

// Documents that are asked about in turn, with room for two of them: in order most are evicted before they recur.
TEST(WaitingQueue, LookingAheadHitsMoreTokens) {
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const int n_documents = 5, n_questions = 4;
  std::map<bool, int64_t> n_found;
  for (const bool looks : {false, true}) {
    const std::unique_ptr<Engine> e = engine(8 * group);
    Scheduler scheduler(*e, {.max_running = 1});
    std::deque<RequestId> running;
    int64_t& n = n_found[looks];
    for (uint32_t i = 0; i < n_documents * n_questions || !running.empty();) {
      while (i < n_documents * n_questions && running.size() < (looks ? 10 : 1)) {
        running.push_back(scheduler.add(prefix_request(*e, document(200, i % n_documents, i))));
        ++i;
      }
      const GenerateResult result = finish(*e, scheduler, running.front());
      running.pop_front();
      n += result.cache.n_prefix_tokens;
    }
    expect_no_page_lost(*e);
  }
  EXPECT_LE(n_found[false], 6 * 200);  // at most two documents stay cached
  EXPECT_GE(n_found[true], 11 * 200);  // of 15, and every document recurs once in ten lines
}

// Little memory, many requests at once, some of them cancelled: each ends, with the answer of no cache.
TEST(WaitingQueue, RandomMixMatchesAnswersWithoutCache) {
  const int64_t group = engine()->caches().usual().prefixes().group_bytes();
  const std::unique_ptr<Engine> e = engine(10 * group, 24 * group), reference = engine(0);
  std::mt19937 random(3);
  std::map<std::vector<int32_t>, std::vector<int32_t>> known;
  Scheduler scheduler(*e, {.max_running = 3});
  std::map<RequestId, std::vector<int32_t>> running;
  const int n_requests = only_ref() ? 40 : 150;
  int64_t n_found = 0;
  for (int i = 0; i < n_requests || !running.empty();) {
    while (running.size() < 9 && i < n_requests) {
      std::vector<int32_t> tokens = document(40 + static_cast<int32_t>(random() % 3) * 80, random() % 3, random() % 4,
                                             1 + static_cast<int32_t>(random() % 90));
      const bool full = random() % 4 > 0;
      Request asked = prefix_request(*e, tokens, full ? "full" : "snapkv:w=8", full ? "" : "0.9");
      if (!full) asked.options.max_tokens = 1;  // chosen before anything is evicted
      running[scheduler.add(std::move(asked))] = std::move(tokens);
      ++i;
    }
    if (random() % 40 == 0) scheduler.cancel(running.begin()->first);
    scheduler.step();
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
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin()));
      n_found += result.cache.n_prefix_tokens;
      at = running.erase(at);
    }
  }
  EXPECT_GT(n_found, 1000);
  expect_no_page_lost(*e);
}

}  // namespace
}  // namespace vlcache
