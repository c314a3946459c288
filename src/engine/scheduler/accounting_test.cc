// No memory is lost, whatever becomes of requests: after every step of batches in which memory runs out, requests are
// cancelled, records are damaged, policies evict, prefixes and images are kept and evicted.
#include <random>

#include "engine/engine_caches.h"
#include "engine/reuse/stored_images_testing.h"
#include "engine/scheduler/accounting_testing.h"

namespace vlcache {
namespace {

class Accounting : public StoredImages {
 protected:
  // Room for about two of the prompts with images, and caches that hold less than they are asked to.
  std::unique_ptr<Engine> small_engine() const {
    const int64_t group = engine()->caches().usual().prefixes().group_bytes();
    EngineOptions options = engine_options();
    options.kv_memory_bytes = 9 * group;
    options.cache_bytes = 6 * group;
    options.prefill_chunk = 50;
    return Engine::load(Checkpoint(fixture_), options);
  }

  Request any_request(Engine& engine, std::mt19937& random) const {
    const std::array<const char*, 5> choosers{nullptr, "static:r=0.3", "asked:r=0.1", "cacheblend:r=0.1", "mpic:k=4"};
    const std::array<const char*, 4> policies{"full", "full", "snapkv:w=16", "streaming:sinks=2,window=40"};
    Request asked = request(engine, nullptr, /*other_image=*/random() % 2 == 0);
    if (random() % 3 == 0) asked.prompt = engine.prepare_raw("No picture, but " + std::to_string(random() % 3), {});
    asked.policy = parse_policy(policies[random() % policies.size()]);
    asked.reuse.prefix = random() % 4 > 0;
    asked.reuse.keep_exact = random() % 4 == 0;
    if (const char* chooser = choosers[random() % choosers.size()]; chooser != nullptr) {
      asked.reuse.chooser = parse_reuse_chooser(chooser);
    }
    asked.options.max_tokens = static_cast<int32_t>(random() % 30);
    return asked;
  }
};

TEST_F(Accounting, IsConsistentAfterEveryStep) {
  store();
  const std::unique_ptr<Engine> e = small_engine();
  Accounts accounts(*e);
  std::mt19937 random(5);
  Scheduler scheduler(*e);
  std::vector<RequestId> running;
  std::map<FinishReason, int> ends;
  int n_full = 0;
  // What has not happened yet. Threads decide with the seed which images are hit in memory and in the tier, so a fixed
  // number of requests may see all of it or not.
  const auto not_seen = [&] {
    const CacheTotals totals = e->kv().totals();
    const std::pair<std::string_view, int64_t> counts[] = {
        {"a cancelled request", ends[FinishReason::kCancelled]},
        {"a finished request", ends[FinishReason::kLength]},
        {"full memory", n_full},
        {"shared pages", accounts.n_seen_shared},
        {"evicted prefixes", e->caches().usual().prefixes().stats().n_evictions},
        {"images found", totals.image_kv.n_hits},
        {"evicted images", totals.image_kv.n_evictions},
        {"records found", totals.tiers.at(0).stats.n_hits}};
    std::vector<std::string_view> names;
    for (const auto& [name, n] : counts) {
      if (n == 0) names.push_back(name);
    }
    return names;
  };
  const int n_least = only_ref() ? 60 : 300;
  const auto goes_on = [&](int i) { return i < n_least || (i < 20 * n_least && !not_seen().empty()); };
  for (int i = 0; goes_on(i) || !running.empty();) {
    while (running.size() < 4 && goes_on(i)) {
      running.push_back(scheduler.add(any_request(*e, random)));
      ++i;
    }
    if (random() % 25 == 0) scheduler.cancel(running[random() % running.size()]);
    if (random() % 40 == 0) ends[scheduler.remove(std::exchange(running.back(), 0)).finish_reason] += 1;
    if (random() % 20 == 0) e->kv().forget_images();
    tier_->bad_sections.clear();
    if (random() % 5 == 0) tier_->bad_sections.insert(static_cast<int32_t>(random() % 2));
    tier_->gone = random() % 10 == 0;
    std::erase(running, 0);
    scheduler.step();
    accounts.check(scheduler);
    if (HasFailure()) return;
    n_full += e->pools().used_bytes() == e->pools().max_bytes() ? 1 : 0;
    std::erase_if(running, [&](RequestId id) {
      if (!scheduler.done(id)) return false;
      ends[scheduler.remove(id).finish_reason] += 1;
      return true;
    });
  }
  accounts.check_end(scheduler);
  EXPECT_EQ(not_seen(), std::vector<std::string_view>{});
}

}  // namespace
}  // namespace vlcache
