// Requests that share steps: priorities, pages for whole prompts, prompts in pieces beside requests that decode.
#include "engine/engine_testing.h"

namespace vlcache {
namespace {

Request request(const Engine& engine, int32_t n_prompt, uint32_t seed, int32_t n_answer, int32_t priority = 0) {
  Request request = prefix_request(engine, random_tokens(n_prompt, seed));
  request.options.max_tokens = n_answer;
  request.priority = priority;
  return request;
}

std::vector<int32_t> alone(Engine& engine, int32_t n_prompt, uint32_t seed, int32_t n_answer) {
  Request asked = request(engine, n_prompt, seed, n_answer);
  asked.reuse.prefix = false;
  return ids_of(generate(engine, std::move(asked)));
}

void finish(Scheduler& scheduler, RequestId id) {
  while (!scheduler.done(id)) scheduler.step();
}

// A preempted request resumes where it was, and its answer is the same.
TEST(Scheduling, HigherPriorityPreemptsARunningRequest) {
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{8} << 20}) {
    const auto e = make_engine(2, "auto", 64 << 20, "llama", 4096, cache_bytes);
    Scheduler scheduler(*e, {.max_running = 1});
    const RequestId first = scheduler.add(request(*e, 200, 1, 40)), second = scheduler.add(request(*e, 100, 2, 5));
    for (int i = 0; i < 10; ++i) scheduler.step();
    EXPECT_EQ(scheduler.n_running(), 1u);
    EXPECT_EQ(scheduler.n_waiting(), 1u);
    const RequestId urgent = scheduler.add(request(*e, 100, 3, 5, 1)), equal = scheduler.add(request(*e, 100, 4, 5, 1));
    finish(scheduler, urgent);
    EXPECT_FALSE(scheduler.done(first) || scheduler.done(second) || scheduler.done(equal));
    finish(scheduler, equal);
    EXPECT_FALSE(scheduler.done(first) || scheduler.done(second));
    finish(scheduler, first);
    finish(scheduler, second);
    const GenerateResult result = scheduler.remove(first);
    EXPECT_EQ(ids_of(result), alone(*e, 200, 1, 40));
    EXPECT_EQ(result.cache.n_prefix_tokens, 0);
    EXPECT_EQ(ids_of(scheduler.remove(urgent)), alone(*e, 100, 3, 5));
    EXPECT_EQ(ids_of(scheduler.remove(second)), alone(*e, 100, 2, 5));
    scheduler.remove(equal);
    expect_no_page_lost(*e);
  }
}

// 2 layers of 2 heads: 20 pages a head. Two prompts of 700 tokens, 11 pages each, do not fit; one waits, and nothing is
// computed twice.
TEST(Scheduling, PromptWaitsForItsPages) {
  const auto e = make_engine(2);
  const int64_t page_bytes = e->kv_bytes(kPageSlots);
  const auto small = make_engine(2, "auto", 20 * page_bytes);
  Scheduler scheduler(*small);
  std::vector<RequestId> ids;
  std::vector<int32_t> n_done(3, 0);
  for (size_t i = 0; i < n_done.size(); ++i) {
    Request asked = request(*small, i < 2 ? 700 : 100, static_cast<uint32_t>(i), 8);
    asked.callbacks.on_prefill = [&n_done, i](int32_t done, int32_t) {
      EXPECT_GT(done, n_done[i]);
      n_done[i] = done;
    };
    ids.push_back(scheduler.add(std::move(asked)));
  }
  scheduler.step();
  EXPECT_EQ(scheduler.n_running(), 1u);
  finish(scheduler, ids[0]);
  EXPECT_EQ(n_done[2], 0);  // a later request does not pass
  for (size_t i = 0; i < ids.size(); ++i) {
    finish(scheduler, ids[i]);
    EXPECT_EQ(ids_of(scheduler.remove(ids[i])), alone(*e, i < 2 ? 700 : 100, static_cast<uint32_t>(i), 8));
  }
  EXPECT_EQ(small->pools().used_bytes(), 0);
}

TEST(Scheduling, PagesGoToTheHigherPriority) {
  const auto e = make_engine(2);
  const auto small = make_engine(2, "auto", 20 * e->kv_bytes(kPageSlots));
  Scheduler scheduler(*small);
  const RequestId low = scheduler.add(request(*small, 700, 1, 20));
  for (int i = 0; i < 5; ++i) scheduler.step();
  const RequestId high = scheduler.add(request(*small, 700, 2, 8, 1));
  finish(scheduler, high);
  EXPECT_FALSE(scheduler.done(low));
  finish(scheduler, low);
  EXPECT_EQ(ids_of(scheduler.remove(high)), alone(*e, 700, 2, 8));
  EXPECT_EQ(ids_of(scheduler.remove(low)), alone(*e, 700, 1, 20));
}

// However little time a step has: prompts continue, by few rows, and every now and then a step only decodes.
TEST(Scheduling, PromptsContinueInPiecesBesideDecoding) {
  const auto e = make_engine(2);
  Scheduler scheduler(*e, {.max_step_ms = 1e-6});
  const RequestId decoding = scheduler.add(request(*e, 20, 1, 2000));
  for (int i = 0; i < 3; ++i) scheduler.step();
  std::vector<int32_t> pieces;
  int32_t n_done = 0;
  Request prompt = request(*e, 1000, 2, 3);
  prompt.callbacks.on_prefill = [&](int32_t done, int32_t) {
    pieces.push_back(done - n_done);
    n_done = done;
  };
  const RequestId id = scheduler.add(std::move(prompt));
  int n_steps = 0;
  while (n_done < 1000) {
    scheduler.step();
    ++n_steps;
  }
  ASSERT_EQ(pieces.size(), 125u);
  for (const int32_t piece : pieces) EXPECT_EQ(piece, 8);
  EXPECT_EQ(n_steps, 125 + 125 / (StepBudget::kAloneEvery + 1));
  finish(scheduler, id);
  EXPECT_EQ(ids_of(scheduler.remove(id)), alone(*e, 1000, 2, 3));
  scheduler.remove(decoding);
}

}  // namespace
}  // namespace vlcache
