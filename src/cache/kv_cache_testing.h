// Fills caches with values that tell layer, head and token apart, and checks the remaining ones. For tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cache/kv_cache.h"
#include "ops/factory.h"

namespace vlcache {

constexpr int32_t kLayers = 2, kHeads = 3, kDim = 32;

class KvCacheFixture : public testing::Test {
 protected:
  explicit KvCacheFixture(std::string_view backend = "ref", KvCodec codec = KvCodec::kF32)
      : backend_(make_backend(backend, DType::kF32)),
        shape_(KvShape::uniform(kLayers, kHeads, kDim, codec)),
        pool_(backend_->kv_page_bytes(codec, kDim), 4096) {}

  KvCache make(int64_t capacity = 0) { return {pool_, *backend_, shape_, capacity}; }
  KvCache make(PagePool& pool, int64_t capacity = 0) { return {pool, *backend_, shape_, capacity}; }
  PagePool pool_of(int64_t n_pages) { return {pool_.page_bytes(), n_pages}; }

  // Small whole numbers, so that bf16 holds them exactly; K and V of neighbours differ in every element.
  static float value(int32_t layer, int32_t head, int32_t token, int64_t c) {
    return static_cast<float>((token * 7 + head * 5 + layer * 3 + c) % 251);
  }

  // Writes K and V of `tokens` into the last slots of a view; V is K's negative plus `salt`.
  void write(const KvView& view, int32_t layer, std::span<const int32_t> tokens, float salt = 0) {
    std::vector<float> k, v;
    for (int32_t t : tokens) {
      for (int32_t h = 0; h < view.n_kv_heads; ++h) {
        for (int64_t c = 0; c < view.head_dim; ++c) {
          k.push_back(value(layer, h, t, c));
          v.push_back(salt - value(layer, h, t, c));
        }
      }
    }
    const int64_t n = static_cast<int64_t>(tokens.size());
    backend_->kv_write(Tensor(k.data(), DType::kF32, {n, view.n_kv_heads, view.head_dim}),
                       Tensor(v.data(), DType::kF32, {n, view.n_kv_heads, view.head_dim}), view);
  }

  // Appends tokens [begin, end) to every layer, each at the position of its index.
  void fill(KvCache& cache, int32_t begin, int32_t end, float salt = 0) {
    const std::vector<int32_t> tokens = range(begin, end);
    for (int32_t l = 0; l < cache.shape().n_layers(); ++l) {
      const KvView view = cache.append(l, tokens);
      if (cache.shape().n_own_heads(l) > 0) write(view, l, tokens, salt);
    }
  }

  struct Rows {
    std::vector<float> k, v;  // [n, head_dim]
  };
  Rows read(const KvView& view, int32_t head) {
    const int32_t n = view.n_slots[head];
    const std::vector<int32_t> slots = range(0, n);
    Rows rows;
    rows.k.resize(static_cast<size_t>(n * view.head_dim));
    rows.v.resize(rows.k.size());
    backend_->kv_read(view, head, slots, Tensor(rows.k.data(), DType::kF32, {n, view.head_dim}),
                      Tensor(rows.v.data(), DType::kF32, {n, view.head_dim}));
    return rows;
  }

  // K and V of a head of a view belong to `tokens`, written in `layer`.
  void expect_rows(const KvView& view, int32_t layer, int32_t head, const std::vector<int32_t>& tokens,
                   float salt = 0) {
    ASSERT_EQ(view.n_slots[head], static_cast<int32_t>(tokens.size()));
    const Rows rows = read(view, head);
    for (size_t i = 0; i < rows.k.size(); ++i) {
      const size_t slot = i / static_cast<size_t>(view.head_dim);
      const float expected = value(layer, head, tokens[slot], static_cast<int64_t>(i) % view.head_dim);
      ASSERT_EQ(rows.k[i], expected) << "layer " << layer << " head " << head << " slot " << slot;
      ASSERT_EQ(rows.v[i], salt - expected) << "layer " << layer << " head " << head << " slot " << slot;
    }
  }
  void expect_tokens(const KvCache& cache, int32_t layer, int32_t head, const std::vector<int32_t>& tokens,
                     float salt = 0) {
    const std::span<const int32_t> slots = cache.slot_tokens(layer, head);
    ASSERT_EQ(std::vector<int32_t>(slots.begin(), slots.end()), tokens) << "layer " << layer << " head " << head;
    expect_rows(cache.view(layer), layer, head, tokens, salt);
  }

  static std::vector<int32_t> range(int32_t begin, int32_t end, int32_t step = 1) {
    std::vector<int32_t> r;
    for (int32_t i = begin; i < end; i += step) r.push_back(i);
    return r;
  }

  static KeepPlan keep_everywhere(const std::vector<int32_t>& keep) {
    KeepPlan plan;
    plan.layers.assign(kLayers, std::vector<KeepPlan::Head>(kHeads, KeepPlan::Head{.keep = keep}));
    return plan;
  }

  std::unique_ptr<Backend> backend_;
  KvShape shape_;
  PagePool pool_;
};

}  // namespace vlcache
