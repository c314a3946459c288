// Kept slots equal to kvpress', KVCache-Factory's and EffiVLM-Bench's, on queries and keys that both make from a seed
// (tools/fixtures/policies/peers.py). Where scores tie, any of them may stay.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/splitmix.h"
#include "engine/cache_slots.h"
#include "engine/policy_hooks.h"
#include "ops/factory.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

// field() of peers.py: random numbers in [-1, 1).
void fill(uint64_t seed, std::span<float> values, float factor) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t z = splitmix((i + 1) * kSplitmixStep + seed);
    values[i] = (static_cast<float>(z >> 40) * 0x1p-23f - 1) * factor;
  }
}

struct Sizes {
  int32_t layers, heads, kv_heads, head_dim;
};

// What a policy keeps of n tokens of those queries and keys, watched as a prefill of one chunk would be.
KeepPlan plan(const Policy& policy, Backend& backend, const Sizes& sizes, int32_t n, const PromptShape& prompt) {
  const KvShape shape = KvShape::uniform(sizes.layers, sizes.kv_heads, sizes.head_dim, KvCodec::kF32);
  PagePools pools(backend, shape, 64 << 20);
  KvCache cache(pools, backend, shape);
  CacheSlots slots(cache);
  PolicyHooks hooks(backend, policy, prompt, slots);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<float> frequencies;
  for (int32_t i = 0; i < sizes.head_dim; i += 2) {
    frequencies.push_back(1.0f / std::pow(10000.0f, static_cast<float>(i) / static_cast<float>(sizes.head_dim)));
  }
  const int64_t h = sizes.heads, hk = sizes.kv_heads, d = sizes.head_dim;
  std::vector<float> q(static_cast<size_t>(n * h * d)), k(static_cast<size_t>(n * hk * d));
  for (int32_t layer = 0; layer < sizes.layers; ++layer) {
    fill(100 + static_cast<uint64_t>(layer), q, std::ldexp(1.0f, layer + 1));
    fill(200 + static_cast<uint64_t>(layer), k, 1.0f);
    const Tensor keys(k.data(), DType::kF32, {n, hk, d});
    const KvView view = cache.append(layer, tokens, tokens);
    backend.kv_write(keys, keys, view);
    const RowRun run{.seq = 0, .row_begin = 0, .n_rows = n};
    Observed observed;
    observed.runs = {&run, 1};
    observed.tokens = tokens;
    observed.positions = tokens;
    observed.views = {&view, 1};
    observed.q = Tensor(q.data(), DType::kF32, {n, h, d});
    observed.scale = 1.0f / std::sqrt(static_cast<float>(d));
    observed.frequencies = frequencies;
    std::vector<int32_t> keep;
    hooks.after_attention(layer, observed, keep);
  }
  const std::vector<TokenInfo> infos(tokens.size());
  KeepPlan plan;
  policy.plan({.slots = slots, .tokens = infos, .prompt = prompt, .captures = hooks.captures()}, plan);
  return plan;
}

class Peers : public testing::TestWithParam<std::string> {};

TEST_P(Peers, KeepTheSameSlots) {
  const Json fixture =
      load_json(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/policies" / (GetParam() + ".json"));
  const Sizes sizes{fixture["layers"], fixture["heads"], fixture["kv_heads"], fixture["head_dim"]};
  const std::unique_ptr<Backend> backend = make_backend("auto", DType::kF32);
  int n_cases = 0;
  for (const Json& c : fixture["cases"]) {
    const std::string name = c["policy"];
    const int32_t n = c["n"], tau = c.value("tau", 0);
    SCOPED_TRACE(name + " of " + std::to_string(n) + " at " + c["budget"].dump());
    const PolicyPtr policy = parse_policy(name, c["budget"].dump());
    const PromptShape prompt{.n_tokens = n, .n_vision = tau > 0 ? n - tau : 0, .n_after_vision = tau > 0 ? tau : n};
    const KeepPlan ours = plan(*policy, *backend, sizes, n, prompt);
    for (size_t layer = 0; layer < ours.layers.size(); ++layer) {
      for (size_t head = 0; head < ours.layers[layer].size(); ++head) {
        const Json& theirs = c["layers"][layer][head];
        const std::vector<int32_t> kept = theirs["kept"], ties = theirs["ties"];
        const std::vector<int32_t>& mine = ours.layers[layer][head].keep;
        EXPECT_EQ(mine.size(), kept.size()) << "layer " << layer << " head " << head;
        std::vector<int32_t> swapped;
        std::ranges::set_symmetric_difference(mine, kept, std::back_inserter(swapped));
        EXPECT_TRUE(std::ranges::includes(ties, swapped))
            << "layer " << layer << " head " << head << ": " << testing::PrintToString(swapped);
      }
    }
    ++n_cases;
  }
  EXPECT_GE(n_cases, 6);
}

INSTANTIATE_TEST_SUITE_P(Peers, Peers, testing::Values("kvpress", "kvcache-factory", "effivlm"), [](const auto& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace vlcache
