// Kept slots equal to kvpress', KVCache-Factory's and EffiVLM-Bench's, on queries and keys that both make from a seed
// (tools/fixtures/policies/peers.py). Where scores tie, any of them may stay.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/splitmix.h"
#include "engine/hooks/cache_slots.h"
#include "engine/hooks/policy_hooks.h"
#include "model/contiguous_kv.h"
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

std::vector<float> queries(const Sizes& sizes, int32_t layer, int32_t n) {
  std::vector<float> q(static_cast<size_t>(n * sizes.heads * sizes.head_dim));
  fill(100 + static_cast<uint64_t>(layer), q, std::ldexp(1.0f, layer + 1));
  return q;
}

std::vector<float> keys(const Sizes& sizes, int32_t layer, int32_t n) {
  std::vector<float> k(static_cast<size_t>(n * sizes.kv_heads * sizes.head_dim));
  fill(200 + static_cast<uint64_t>(layer), k, 1.0f);
  return k;
}

// What a policy keeps of n tokens of those queries and keys, which are values too, captured as in a prefill of one
// chunk.
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
  const std::vector<RopeAxis> axes(frequencies.size(), RopeAxis::kT);
  const std::vector<Position> positions = as_text(tokens);
  const int64_t h = sizes.heads, hk = sizes.kv_heads, d = sizes.head_dim;
  for (int32_t layer = 0; layer < sizes.layers; ++layer) {
    std::vector<float> q = queries(sizes, layer, n), k = keys(sizes, layer, n);
    const Tensor stored(k.data(), DType::kF32, {n, hk, d});
    const KvView view = cache.append(layer, tokens);
    backend.kv_write(stored, stored, view);
    const RowRun run{.seq = 0, .row_begin = 0, .n_rows = n};
    Observed observed;
    observed.runs = {&run, 1};
    observed.tokens = tokens;
    observed.positions = positions;
    observed.views = {&view, 1};
    observed.q = Tensor(q.data(), DType::kF32, {n, h, d});
    observed.scale = 1.0f / std::sqrt(static_cast<float>(d));
    observed.frequencies = frequencies;
    observed.axes = axes;
    std::vector<int32_t> keep;
    hooks.after_attention(layer, observed, keep);
  }
  int piece = 0;
  for (Lookahead& r : hooks.list_lookaheads(n, {})) {
    r.first_own = n;
    hooks.begin(r);
    const int32_t m = 7 + (piece > 0 ? kReplayOverlap : 0) + r.end - r.begin;  // as from_kvzip() of peers.py
    std::vector<int32_t> own(static_cast<size_t>(m));
    std::iota(own.begin(), own.end(), n);
    const std::vector<Position> own_positions = as_text(own);
    for (int32_t layer = 0; layer < sizes.layers; ++layer) {
      const auto seed = static_cast<uint64_t>(100 * piece + layer);
      std::vector<float> q(static_cast<size_t>(m * h * d)), k(static_cast<size_t>(m * hk * d));
      fill(1000 + seed, q, std::ldexp(1.0f, layer + 1));
      fill(5000 + seed, k, 1.0f);
      const Tensor stored(k.data(), DType::kF32, {m, hk, d});
      const KvView view = cache.append(layer, own);
      backend.kv_write(stored, stored, view);
      const RowRun run{.seq = 0, .row_begin = 0, .n_rows = m};
      Observed observed;
      observed.runs = {&run, 1};
      observed.tokens = own;
      observed.positions = own_positions;
      observed.views = {&view, 1};
      observed.q = Tensor(q.data(), DType::kF32, {m, h, d});
      observed.scale = 1.0f / std::sqrt(static_cast<float>(d));
      std::vector<int32_t> keep;
      hooks.after_attention(layer, observed, keep);
    }
    cache.truncate(n);
    ++piece;
  }
  const std::vector<TokenInfo> infos(tokens.size());
  KeepPlan plan;
  policy.plan({.slots = slots, .tokens = infos, .prompt = prompt, .captures = hooks.captures()}, plan);
  return plan;
}

// The error of the outputs of a head's last 64 queries over the kept slots, relative to the full outputs.
double output_error(const Sizes& sizes, int32_t layer, int32_t head, int32_t n, const KeepPlan::Head& kept) {
  const std::vector<float> q = queries(sizes, layer, n), k = keys(sizes, layer, n);
  const int32_t d = sizes.head_dim, group = sizes.heads / sizes.kv_heads;
  const auto key = [&](int32_t i) { return k.data() + (i * sizes.kv_heads + head) * d; };
  // softmax over `slots` that the row sees, of logits and biases, times values
  const auto output = [&](int32_t row, int32_t h, std::span<const int32_t> slots, std::span<const float> bias,
                          const auto& value) {
    std::vector<double> out(static_cast<size_t>(d));
    double sum = 0;
    for (size_t j = 0; j < slots.size(); ++j) {
      if (slots[j] > row) continue;
      double x = bias.empty() ? 0 : bias[j];
      for (int32_t c = 0; c < d; ++c)
        x += q[static_cast<size_t>((row * sizes.heads + h) * d + c)] * key(slots[j])[c] / std::sqrt(d);
      const double weight = std::exp(x);
      sum += weight;
      for (int32_t c = 0; c < d; ++c) out[static_cast<size_t>(c)] += weight * value(j)[c];
    }
    for (double& x : out) x /= sum;
    return out;
  };
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  double error = 0, size = 0;
  for (int32_t row = n - 64; row < n; ++row) {
    for (int32_t h = head * group; h < (head + 1) * group; ++h) {
      const auto right = output(row, h, all, {}, [&](size_t j) { return key(static_cast<int32_t>(j)); });
      const auto got = output(row, h, kept.keep, kept.slot_bias,
                              [&](size_t j) { return kept.values.data() + j * static_cast<size_t>(d); });
      for (size_t c = 0; c < right.size(); ++c) {
        error += (got[c] - right[c]) * (got[c] - right[c]);
        size += right[c] * right[c];
      }
    }
  }
  return std::sqrt(error / size);
}

const std::map<std::string, int> kCases{{"kvpress", 51}, {"kvcache-factory", 12}, {"effivlm", 6}, {"compaction", 3}};

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
    const PromptShape prompt{.n_tokens = n,
                             .n_vision = tau > 0 ? n - tau : 0,
                             .n_after_vision = tau > 0 ? tau : n,
                             .n_template = c.value("prefix", 0)};
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
        if (!theirs.contains("error")) continue;
        const double error =
            output_error(sizes, static_cast<int32_t>(layer), static_cast<int32_t>(head), n, ours.layers[layer][head]);
        EXPECT_LE(error, theirs["error"].get<double>() * 1.001) << "layer " << layer << " head " << head;
      }
    }
    ++n_cases;
  }
  EXPECT_EQ(n_cases, kCases.at(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Peers, Peers, testing::Values("kvpress", "kvcache-factory", "effivlm", "compaction"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace vlcache
