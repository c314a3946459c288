// Prefixes of a model whose full pages become codes, or whose layers have windows, computed as an engine would. For
// tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "cache/continuation.h"
#include "ops/factory.h"
#include "reuse/prefix/prefix_cache.h"

namespace vlcache {

class CodedPrefixFixture : public testing::Test {
 protected:
  using Key = std::vector<Element>;
  static constexpr int32_t kLayers = 2, kHeads = 2, kDim = 16;

  CodedPrefixFixture() {
    for (KvLayerShape& layer : shape_.layers) layer.coded = KvCodec::kInt8;
    set_budget(int64_t{64} << 20);
  }
  // An empty cache.
  void set_budget(int64_t bytes) {
    prefixes_.reset();
    pools_ = std::make_unique<PagePools>(*backend_, shape_, int64_t{64} << 20);
    budget_ = std::make_unique<CacheBudget>(bytes);
    prefixes_ = std::make_unique<PrefixCache>(*budget_, *pools_, shape_);
  }
  KvCache make() { return {*pools_, *backend_, shape_}; }

  // n elements, `other` from n_common on.
  static Key key_of(int32_t n, int32_t n_common, Element other) {
    Key key(static_cast<size_t>(n), 1);
    std::fill(key.begin() + n_common, key.end(), other);
    return key;
  }
  static Key first(const Key& key, int32_t n) { return {key.begin(), key.begin() + n}; }
  // Appends the elements from `begin` on: K and V depend on the element and its index.
  void compute(KvCache& cache, const Key& key, int32_t begin) {
    const auto n = static_cast<int32_t>(key.size());
    for (int32_t at = begin, end = 0; at < n; at = end) {
      end = std::min(at + 512, n);
      std::vector<int32_t> tokens(static_cast<size_t>(end - at));
      std::iota(tokens.begin(), tokens.end(), at);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        write(cache.append(layer, tokens), key, tokens, layer);
        cache.encode(layer);
      }
      cache.end_step();
    }
  }
  // Shares the cached elements, computes the rest, and keeps all. Returns the number of cached elements.
  int32_t ask(const Key& key) {
    KvCache cache = make();
    const PrefixCache::Known known = prefixes_->known(key);
    const PrefixTree::Pin pin = prefixes_->share(first(key, known.n), cache);
    keep_places(cache, key);
    if (known.n_common > known.n) cache.keep_place(known.n_common);
    compute(cache, key, known.n);
    prefixes_->keep(key, cache, 1);
    return known.n;
  }
  static void keep_places(KvCache& cache, const Key& key) {
    cache.keep_regular_places();
    cache.keep_place(static_cast<int32_t>(key.size()));
  }
  // Rows after both read the same.
  void expect_equal(const KvCache& a, const KvCache& b) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t head = 0; head < kHeads; ++head) {
        ASSERT_EQ(a.n_slots(layer, head), b.n_slots(layer, head));
        for (int32_t i = first_page(a, layer); i < pages_for(a.n_slots(layer, head)); ++i) {
          ASSERT_TRUE(a.holds(layer, head, i * kPageSlots) && b.holds(layer, head, i * kPageSlots)) << "page " << i;
          ASSERT_EQ(a.view(layer).page_codec(head, i), b.view(layer).page_codec(head, i)) << "page " << i;
        }
        ASSERT_EQ(rows(a, layer, head), rows(b, layer, head)) << "layer " << layer << " head " << head;
      }
    }
  }
  // Without running sequences, the cache holds all pages of the pools.
  void expect_exact_bytes() {
    EXPECT_EQ(prefixes_->bytes(), pools_->used_bytes());
    std::map<std::pair<const PagePool*, int32_t>, int> pages;
    int64_t bytes = 0;
    prefixes_->for_each_page([&](const PagePool& pool, int32_t page) {
      if (++pages[{&pool, page}] == 1) bytes += pool.page_bytes();
    });
    EXPECT_EQ(bytes, pools_->used_bytes());
  }
  // Of a group in a form.
  int64_t value_bytes() const { return kLayers * kHeads * backend_->kv_page_bytes(KvCodec::kF32, kDim); }
  int64_t code_bytes() const { return kLayers * kHeads * backend_->kv_page_bytes(KvCodec::kInt8, kDim); }

  const std::unique_ptr<Backend> backend_ = make_backend("ref", DType::kF32, {});
  KvShape shape_ = KvShape::uniform(kLayers, kHeads, kDim, KvCodec::kF32);
  std::unique_ptr<PagePools> pools_;
  std::unique_ptr<CacheBudget> budget_;
  std::unique_ptr<PrefixCache> prefixes_;

 private:
  // That the row after all tokens sees.
  static int32_t first_page(const KvCache& cache, int32_t layer) {
    const int32_t window = cache.shape().layers[static_cast<size_t>(layer)].window;
    return window > 0 ? window_begin(cache.n_slots(layer, 0), window) : 0;
  }
  void write(const KvView& view, const Key& key, std::span<const int32_t> tokens, int32_t layer) {
    std::vector<float> k, v;
    for (const int32_t t : tokens) {
      for (int32_t i = 0; i < kHeads * kDim; ++i) {
        const auto element = static_cast<int32_t>(key[static_cast<size_t>(t)]);
        k.push_back(static_cast<float>((t * 7 + i * 5 + layer * 3 + element * 11) % 251));
        v.push_back(100 - k.back());
      }
    }
    const int64_t n = std::ssize(tokens);
    backend_->kv_write(Tensor(k.data(), DType::kF32, {n, kHeads, kDim}),
                       Tensor(v.data(), DType::kF32, {n, kHeads, kDim}), view);
  }
  static std::vector<float> rows(const KvCache& cache, int32_t layer, int32_t head) {
    const int64_t n = cache.n_slots(layer, head), first = int64_t{first_page(cache, layer)} * kPageSlots;
    std::vector<float> k(static_cast<size_t>(n * kDim)), v(k.size());
    cache.read(layer, head, Tensor(k.data(), DType::kF32, {n, kDim}), Tensor(v.data(), DType::kF32, {n, kDim}));
    k.erase(k.begin(), k.begin() + first * kDim);
    k.insert(k.end(), v.begin() + first * kDim, v.end());
    return k;
  }
};

// The same where the last layer has a window, or both have, with codes and without.
struct WindowedShape {
  bool all = false, coded = false;
};
inline constexpr WindowedShape kWindowedShapes[] = {{}, {.all = true}, {.coded = true}, {.all = true, .coded = true}};
inline constexpr int32_t kTestWindow = 100;

inline void set_windows(KvShape& shape, const WindowedShape& windows) {
  for (KvLayerShape& layer : shape.layers) {
    layer.coded = windows.coded ? std::optional(KvCodec::kInt8) : std::nullopt;
    layer.window = windows.all || &layer == &shape.layers.back() ? kTestWindow : 0;
  }
}
// Where its prefixes can be continued without a place of their own.
inline int32_t regular_place(const WindowedShape& windows) { return windows.coded ? 2048 : 1536; }

}  // namespace vlcache
