// Random histories of a cache against the simplest model of one: a vector of slots per head. On every backend, in every
// codec.
#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>

#include "cache/kv_cache_testing.h"

namespace vlcache {
namespace {

struct Slot {
  int32_t token = 0;
  int32_t place = 0;
  float bias = 0;
  float sum = 0;  // the plane
  std::vector<float> k, v;
};

using Heads = std::vector<std::vector<Slot>>;  // [layer * kHeads + head]

class KvCacheModel : public KvCacheFixture,
                     public testing::WithParamInterface<std::tuple<std::string_view, KvCodec, int64_t>> {
 protected:
  KvCacheModel() : KvCacheFixture(std::get<0>(GetParam()), std::get<1>(GetParam())) {}

  int32_t random(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  float stored(float x) const { return shape_.codec == KvCodec::kBF16 ? to_float(to_bf16(x)) : x; }
  static std::vector<Slot>& head_of(Heads& heads, int32_t layer, int32_t head) {
    return heads[static_cast<size_t>(layer * kHeads + head)];
  }

  void append(KvCache& cache, Heads& heads, int32_t n) {
    const std::vector<int32_t> tokens = range(next_, next_ + n);
    for (int32_t l = 0; l < kLayers; ++l) {
      const KvView view = cache.append(l, tokens);
      write(view, l, tokens);
      for (int32_t h = 0; h < kHeads; ++h) {
        for (int32_t t : tokens) {
          Slot slot{.token = t, .place = t};
          for (int64_t c = 0; c < kDim; ++c) slot.k.push_back(value(l, h, t, c)), slot.v.push_back(-value(l, h, t, c));
          head_of(heads, l, h).push_back(slot);
        }
        const std::span<float> sums = cache.plane(l, h, 0);
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += static_cast<float>(i % 7);
          head_of(heads, l, h)[i].sum += static_cast<float>(i % 7);
        }
      }
    }
    next_ += n;
  }

  void hide(KvCache& cache, Heads& heads) {
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t h = 0; h < kHeads; ++h) {
        std::vector<Slot>& slots = head_of(heads, l, h);
        if (slots.empty()) continue;
        const bool in_a_row = random(2) == 0;  // as a window slides, or here and there
        const int32_t n = random(40), first = random(static_cast<int32_t>(slots.size()));
        for (int32_t i = 0; i < n; ++i) {
          const int32_t slot = in_a_row ? first + i : random(static_cast<int32_t>(slots.size()));
          if (slot >= static_cast<int32_t>(slots.size())) break;
          cache.hide(l, h, slot);
          slots[static_cast<size_t>(slot)].bias = -INFINITY;
        }
      }
    }
  }

  void sweep(KvCache& cache, Heads& heads) {
    cache.sweep();
    for (std::vector<Slot>& slots : heads) {
      const auto hidden = [](const Slot& s) { return std::isinf(s.bias); };
      if (std::ranges::count_if(slots, hidden) >= kPageSlots) std::erase_if(slots, hidden);
    }
  }

  // Keeps most slots, merges some of the others, gives values to the kept ones of some heads.
  KeepPlan::Head plan_head(std::vector<Slot>& slots) {
    KeepPlan::Head plan;
    std::vector<Slot> after;
    std::vector<int32_t> dropped;
    const int32_t drop_one_in = 2 + random(6);
    // Of the first kept slots: none as a rule, all, or some.
    const int32_t n_new_values = random(4) == 0 ? random(2 * static_cast<int32_t>(slots.size()) + 1) : 0;
    for (int32_t i = 0; i < static_cast<int32_t>(slots.size()); ++i) {
      Slot slot = slots[static_cast<size_t>(i)];
      if (random(drop_one_in) == 0) {
        dropped.push_back(i);
        if (dropped.size() % 3 != 0) continue;
        const int32_t other = dropped[dropped.size() - 2];  // merged with the one before, at that one's place
        if (!after.empty() && first_token(after.back().token) > first_token(slots[static_cast<size_t>(other)].token)) {
          continue;
        }
        plan.merges.push_back({.sources = {i, other}, .weights = {0.5f, 0.25f}});
        const Slot& a = slots[static_cast<size_t>(other)];
        Slot merged{
            .token = merged_token(first_token(a.token)), .place = a.place, .bias = a.bias, .sum = a.sum + slot.sum};
        for (size_t c = 0; c < kDim; ++c) {
          merged.k.push_back(stored(0.5f * slot.k[c] + 0.25f * a.k[c]));
          merged.v.push_back(stored(0.5f * slot.v[c] + 0.25f * a.v[c]));
        }
        after.push_back(merged);
        continue;
      }
      plan.keep.push_back(i);
      const bool new_value = std::ssize(plan.keep) <= n_new_values;
      for (size_t c = 0; c < kDim && new_value; ++c) {
        plan.values.push_back(static_cast<float>(random(200)));
        slot.v[c] = plan.values.back();
      }
      after.push_back(slot);
    }
    if (random(3) == 0) {
      for (Slot& s : after) plan.slot_bias.push_back(s.bias = static_cast<float>(random(3)));
    }
    slots = after;
    return plan;
  }

  void compact(KvCache& cache, Heads& heads) {
    KeepPlan plan;
    for (int32_t l = 0; l < kLayers; ++l) {
      plan.layers.emplace_back();
      for (int32_t h = 0; h < kHeads; ++h) plan.layers.back().push_back(plan_head(head_of(heads, l, h)));
    }
    cache.compact(plan);
  }

  void truncate(KvCache& cache, Heads& heads) {
    const int32_t n = std::max(0, next_ - random(80));
    cache.truncate(n);
    for (std::vector<Slot>& slots : heads) {
      std::erase_if(slots, [&](const Slot& s) { return first_token(s.token) >= n; });
    }
    next_ = n;
  }

  void fail_a_step(KvCache& cache, Heads& heads) {
    const int32_t before = next_;
    Heads lost = heads;
    cache.begin_step();
    append(cache, lost, 1 + random(100));
    cache.rollback_step();
    next_ = before;
    for (int32_t l = 0; l < kLayers; ++l) {  // append() has added to the sums of slots that stay
      for (int32_t h = 0; h < kHeads; ++h) {
        for (size_t i = 0; i < head_of(heads, l, h).size(); ++i) {
          head_of(heads, l, h)[i].sum = head_of(lost, l, h)[i].sum;
        }
      }
    }
  }

  void expect_same(KvCache& cache, Heads& heads) {
    for (int32_t l = 0; l < kLayers; ++l) {
      const KvView view = cache.view(l);
      for (int32_t h = 0; h < kHeads; ++h) {
        const std::vector<Slot>& slots = head_of(heads, l, h);
        ASSERT_EQ(cache.n_slots(l, h), static_cast<int32_t>(slots.size()));
        ASSERT_EQ(cache.n_hidden(l, h), std::ranges::count_if(slots, [](const Slot& s) { return std::isinf(s.bias); }));
        const Rows rows = read(view, h);
        for (size_t i = 0; i < slots.size(); ++i) {
          const size_t at = static_cast<size_t>(h) * static_cast<size_t>(view.slot_stride) + i;
          ASSERT_EQ(cache.slot_tokens(l, h)[i], slots[i].token) << "slot " << i;
          ASSERT_EQ(view.slot_pos == nullptr ? static_cast<int32_t>(i) : view.slot_pos[at], slots[i].place);
          ASSERT_EQ(view.slot_bias == nullptr ? 0 : view.slot_bias[at], slots[i].bias);
          ASSERT_EQ(cache.plane(l, h, 0)[i], slots[i].sum);
          for (size_t c = 0; c < kDim; ++c) {
            ASSERT_EQ(rows.k[i * kDim + c], slots[i].k[c]) << "layer " << l << " head " << h << " slot " << i;
            ASSERT_EQ(rows.v[i * kDim + c], slots[i].v[c]) << "layer " << l << " head " << h << " slot " << i;
          }
        }
      }
    }
  }

  std::mt19937 random_{11};
  int32_t next_ = 0;  // the sequence's length
};

TEST_P(KvCacheModel, RandomHistories) {
  const int64_t capacity = std::get<2>(GetParam());
  {
    std::vector<KvCache> forks;  // they keep pages shared
    std::vector<Heads> forks_heads;
    Heads heads(kLayers * kHeads);
    KvCache cache = make(capacity);
    cache.set_planes(1);
    for (int step = 0; step < 150; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      int32_t longest = 0;
      for (const auto& slots : heads) longest = std::max(longest, static_cast<int32_t>(slots.size()));
      const int32_t what = random(12);
      if (longest > 500) {
        compact(cache, heads);
      } else if (what < 5) {
        append(cache, heads, 1 + random(what == 0 ? 130 : 10));
      } else if (what < 8) {
        hide(cache, heads);
        sweep(cache, heads);
      } else if (what == 8) {
        compact(cache, heads);
      } else if (what == 9) {
        truncate(cache, heads);
      } else if (what == 10) {
        fail_a_step(cache, heads);
      } else {
        if (forks.size() > 2) forks.clear(), forks_heads.clear();
        forks.push_back(cache.fork());
        forks_heads.push_back(heads);
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(cache, heads));
      if (step % 10 == 9) {
        for (size_t i = 0; i < forks.size(); ++i) ASSERT_NO_FATAL_FAILURE(expect_same(forks[i], forks_heads[i]));
      }
    }
  }
  EXPECT_EQ(pool_.n_used(), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, KvCacheModel,
                         testing::Combine(testing::ValuesIn(backend_names()),
                                          testing::Values(KvCodec::kF32, KvCodec::kBF16),
                                          testing::Values(int64_t{0}, int64_t{1000})));

}  // namespace
}  // namespace vlcache
