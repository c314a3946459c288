// Requests of many threads, cancelled requests, a full waiting queue, the end.
#include "server/operations/inference.h"

#include <condition_variable>
#include <future>

#include "engine/engine_testing.h"

namespace vlcache {
namespace {

Request request(Engine& engine, int32_t n_tokens, uint32_t seed = 7) {
  Request request;
  request.prompt = engine.prepare_tokens(random_tokens(20, seed));
  request.policy = parse_policy("full");
  request.options.max_tokens = n_tokens;
  request.options.ignore_eos = true;
  return request;
}

// Collects results by number.
class Results {
 public:
  Inference::Done done(int number) {
    return [this, number](GenerateResult result) {
      const std::lock_guard lock(mutex_);
      results_[number] = std::move(result);
      changed_.notify_all();
    };
  }
  std::map<int, GenerateResult>& wait_for(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.size() >= n; });
    return results_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, GenerateResult> results_;
};

bool submit(Inference& inference, Request request, Inference::Done done,
            std::shared_ptr<Wanted> wanted = std::make_shared<Wanted>()) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return inference.submit(std::move(requests), std::move(wanted), {std::move(done)}, [] {});
}

std::vector<int32_t> ids(const GenerateResult& result) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
  return ids;
}

TEST(Inference, AnswersDoNotDependOnTheNumberOfThreads) {
  const auto engine = make_engine(2);
  std::vector<std::vector<int32_t>> alone;
  for (uint32_t i = 0; i < 12; ++i) alone.push_back(ids(generate(*engine, request(*engine, 8, i))));
  Results results;
  Inference inference(*engine, {.n_running = 5, .n_waiting = 100});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 12; i += 4) {
        EXPECT_TRUE(submit(inference, request(*engine, 8, static_cast<uint32_t>(i)), results.done(i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [number, result] : results.wait_for(12)) EXPECT_EQ(ids(result), alone[static_cast<size_t>(number)]);
}

TEST(Inference, CancelledRequestIsNotComputedFurther) {
  const auto engine = make_engine(2);
  Results results;
  Inference inference(*engine, {.n_running = 1, .n_waiting = 10});
  const auto first = std::make_shared<Wanted>(), second = std::make_shared<Wanted>();
  EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(0), first));
  EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(1), second));
  second->cancel();
  first->cancel();
  for (const auto& [number, result] : results.wait_for(2)) EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
}

TEST(Inference, StateIsReportedWhileRequestsRun) {
  const auto engine = make_engine(2);
  Results results;
  const auto wanted = std::make_shared<Wanted>();
  Inference inference(*engine, {.n_running = 1, .n_waiting = 10});
  EXPECT_EQ(inference.state().n_running, 0);
  EXPECT_EQ(inference.state().kv_bytes, 0);
  EXPECT_GT(inference.state().kv_max_bytes, 0);
  EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(0), wanted));
  while (inference.state().kv_bytes == 0) std::this_thread::yield();  // before its end
  EXPECT_EQ(inference.state().n_running, 1);
  wanted->cancel();
  results.wait_for(1);
  while (inference.state().n_running > 0) std::this_thread::yield();
  EXPECT_EQ(inference.state().kv_bytes, 0);
}

TEST(Inference, FullQueueAcceptsAllRequestsOfASubmissionOrNone) {
  const auto engine = make_engine(2);
  Results results;
  const auto wanted = std::make_shared<Wanted>();
  Inference inference(*engine, {.n_running = 1, .n_waiting = 2});
  const auto two = [&](int number) {
    std::vector<Request> requests;
    for (int i = 0; i < 2; ++i) requests.push_back(request(*engine, 4000));
    return inference.submit(std::move(requests), wanted, {results.done(number), results.done(number + 1)}, [] {});
  };
  EXPECT_TRUE(two(0));
  while (inference.state().n_waiting > 1) std::this_thread::yield();
  EXPECT_FALSE(two(2));
  EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(4), wanted));
  EXPECT_FALSE(submit(inference, request(*engine, 4000), results.done(5), wanted));
  wanted->cancel();
  EXPECT_EQ(results.wait_for(3).size(), 3u);
}

TEST(Inference, UnanswerableRequestIsAnError) {
  const auto engine = make_engine(2, "auto", 64 << 20, "llama", /*max_positions=*/16);
  Results results;
  Inference inference(*engine, {});
  EXPECT_TRUE(submit(inference, request(*engine, 4), results.done(0)));
  EXPECT_TRUE(results.wait_for(1).at(0).error);
}

TEST(Inference, CancelledRequestLeavesTheQueue) {
  const auto engine = make_engine(2);
  Results results;
  const auto first = std::make_shared<Wanted>(), second = std::make_shared<Wanted>();
  Inference inference(*engine, {.n_running = 1, .n_waiting = 1});
  EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(0), first));
  while (inference.state().n_waiting > 0) std::this_thread::yield();
  EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(1), second));
  EXPECT_FALSE(submit(inference, request(*engine, 4000), results.done(2)));
  second->cancel();
  EXPECT_EQ(results.wait_for(1).at(1).finish_reason, FinishReason::kCancelled);  // while the first still runs
  EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(3), first));
  first->cancel();
  EXPECT_EQ(results.wait_for(3).size(), 3u);
}

TEST(Inference, TimeoutEndsRunningAndWaitingRequests) {
  const auto engine = make_engine(2);
  Results results;
  const auto wanted = std::make_shared<Wanted>(Clock::now() + std::chrono::milliseconds(30));
  Inference inference(*engine, {.n_running = 1, .n_waiting = 10});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(i), wanted));
  for (const auto& [number, result] : results.wait_for(2)) EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(wanted->late());
}

TEST(Inference, TasksRunBetweenSteps) {
  const auto engine = make_engine(2);
  Results results;
  const auto wanted = std::make_shared<Wanted>();
  Inference inference(*engine, {.n_running = 1, .n_waiting = 10});
  for (const bool idle : {true, false}) {
    if (!idle) {
      EXPECT_TRUE(submit(inference, request(*engine, 4000), results.done(0), wanted));
    }
    const auto done = std::make_shared<std::promise<Engine*>>();
    inference.between_steps([done](Engine& e) { done->set_value(&e); });
    EXPECT_EQ(done->get_future().get(), engine.get());
  }
  wanted->cancel();
  EXPECT_EQ(results.wait_for(1).size(), 1u);
}

TEST(Inference, CanEndWhileRequestsRun) {
  const auto engine = make_engine(2);
  std::atomic<bool> called = false;
  Inference inference(*engine, {.n_running = 1, .n_waiting = 10});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(submit(inference, request(*engine, 4000), [&](const GenerateResult&) { called = true; }));
  }
  inference.end();
  EXPECT_FALSE(called);
  EXPECT_FALSE(submit(inference, request(*engine, 4), [](const GenerateResult&) {}));
  EXPECT_EQ(engine->pools().used_bytes(), 0);
}

}  // namespace
}  // namespace vlcache
