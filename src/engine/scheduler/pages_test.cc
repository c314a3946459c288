// Policies that compress KV while all pages are in use. Pages that are shared with the prefix cache must be copied for
// that: requests that fit alone are answered in company, too, each as alone, and no page is lost.
#include <cstdlib>
#include <cstring>

#include "engine/engine_testing.h"
#include "engine/policies_testing.h"
#include "engine/scheduler/accounting_testing.h"

namespace vlcache {
namespace {

constexpr int32_t kCompressedAnswer = 70;

class PagesForPolicies : public testing::Test {
 protected:
  // On `ref`, where no sum depends on what else a step computes.
  static std::unique_ptr<Engine> engine_of(int64_t bytes) {
    return make_engine(2, "ref", bytes, "llama", 4096, /*cache_bytes=*/64 << 20);
  }

  // Prompts of one beginning: their pages are shared.
  static Request request(const Engine& engine, const std::string& policy, uint32_t seed) {
    std::vector<int32_t> tokens = random_tokens(200);
    const std::vector<int32_t> end = random_tokens(60 + 7 * static_cast<int32_t>(seed), seed);
    tokens.insert(tokens.end(), end.begin(), end.end());
    Request request = prefix_request(engine, std::move(tokens), "full");
    request.policy = parse_policy(policy, budget_for(policy));
    request.reuse.keep_exact = true;
    request.options.max_tokens = kCompressedAnswer;
    return request;
  }
  // Whether a prompt without images and a model without measured heads suit the policy.
  static bool suits(const std::string& policy) {
    for (const char* other : {"hired", "fastv", "duo", "razor"}) {
      if (policy.starts_with(other)) return false;
    }
    return true;
  }

  static GenerateResult alone(Engine& engine, Request request) {
    Scheduler scheduler(engine);
    Accounts accounts(engine);
    const RequestId id = scheduler.add(std::move(request));
    while (scheduler.step()) {
    }
    GenerateResult result = scheduler.remove(id);
    accounts.check(scheduler);
    return result;
  }

  static void expect_answer(const GenerateResult& found, const std::vector<int32_t>& expected, const char* how) {
    if (found.error) {
      ADD_FAILURE() << how << ": " << found.error->what();
    } else {
      EXPECT_EQ(ids_of(found), expected) << how;
    }
  }

  void check(const std::string& policy) {
    SCOPED_TRACE(policy);
    constexpr uint32_t kRequests = 3;
    const std::unique_ptr<Engine> large = engine_of(64 << 20);
    const int64_t group = large->kv_bytes(kPageSlots);
    const auto without_reuse = [&](Engine& engine, uint32_t i) {
      Request asked = request(engine, policy, i);
      asked.reuse.prefix = asked.reuse.keep_exact = false;
      return alone(engine, std::move(asked));
    };
    std::vector<std::vector<int32_t>> expected;
    int64_t least = 0;
    for (uint32_t i = 0; i < kRequests; ++i) {
      const GenerateResult result = without_reuse(*large, i);
      ASSERT_FALSE(result.error) << result.error->what();
      expected.push_back(ids_of(result));
      // The least in which it fits by itself: whole pages of all heads.
      least = std::max(least, (result.kv.peak_bytes + group - 1) / group * group);
      while (ids_of(without_reuse(*engine_of(least), i)) != expected[i]) least += group;
    }
    std::vector<int64_t> sizes{least};
    if (!only_ref()) sizes.push_back(least + 2 * group);
    for (const int64_t bytes : sizes) {
      SCOPED_TRACE(std::to_string(bytes / group) + " pages a head");
      const std::unique_ptr<Engine> small = engine_of(bytes);
      for (uint32_t i = 0; i < kRequests; ++i) {  // the first fills the cache for those after it
        const GenerateResult result = alone(*small, request(*small, policy, i));
        expect_answer(result, expected[i], "alone");
      }
      Scheduler scheduler(*small);
      Accounts accounts(*small);
      std::vector<RequestId> ids;
      for (uint32_t i = 0; i < kRequests; ++i) ids.push_back(scheduler.add(request(*small, policy, i)));
      while (scheduler.step()) accounts.check(scheduler);
      for (uint32_t i = 0; i < kRequests; ++i) {
        const GenerateResult result = scheduler.remove(ids[i]);
        n_preempted_ += result.preemptions.n_times;
        expect_answer(result, expected[i], "in company");
      }
      accounts.check_end(scheduler);
      if (HasFailure()) return;
    }
  }

  int n_preempted_ = 0;
};

// VLCACHE_TEST_PAGES=all takes every policy (make soak), else each thirteenth or fewer.
TEST_F(PagesForPolicies, AreFoundForEveryPolicy) {
  const char* const asked = std::getenv("VLCACHE_TEST_PAGES");
  const bool all = asked != nullptr && std::strcmp(asked, "all") == 0;
  const size_t stride = only_ref() ? 80 : 13;  // sanitizers are slow
  size_t n = 0;
  for (const std::string& policy : all_policies()) {
    if (!suits(policy) || (!all && n++ % stride != 0)) continue;
    check(policy);
    if (HasFailure()) return;
  }
  EXPECT_GT(n_preempted_, 0);
}

}  // namespace
}  // namespace vlcache
