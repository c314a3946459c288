// Provides owned f32 matrices and small caches for the tests of the reference backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ops/ref/ref_backend.h"

namespace vlcache::ref_test {

inline const std::unique_ptr<Backend> kRef = make_ref_backend(DType::kF32);

struct Seed {
  explicit Seed(uint64_t v) : value(v) {}
  uint64_t value;
};

struct Matrix {
  std::vector<float> data;
  Tensor t;

  Matrix(std::initializer_list<int64_t> dims, std::vector<float> values) : data(std::move(values)) {
    t = Tensor(data.data(), DType::kF32, dims);
    CHECK(t.numel() == static_cast<int64_t>(data.size()));
  }
  explicit Matrix(std::initializer_list<int64_t> dims) {
    data.assign(static_cast<size_t>(Tensor(nullptr, DType::kF32, dims).numel()), -77.0f);
    t = Tensor(data.data(), DType::kF32, dims);
  }
  // Uniform in [-1, 1].
  Matrix(std::initializer_list<int64_t> dims, Seed seed) : Matrix(dims) {
    std::mt19937_64 random(seed.value);
    for (float& x : data) x = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  float at(int64_t i) const { return data[static_cast<size_t>(i)]; }
};

// A cache of one sequence with owned pages in descending order of id. Fill it with kv_write through `view`.
struct Cache {
  std::vector<int32_t> n_slots, pages, position;
  std::vector<uint8_t> codecs;
  std::vector<float> bias;
  Buffer pools[kKvCodecs];
  KvView view;

  Cache(Backend& backend, std::vector<int32_t> slots, int32_t d) : n_slots(std::move(slots)) {
    const int32_t n_heads = static_cast<int32_t>(n_slots.size());
    const int32_t most = *std::max_element(n_slots.begin(), n_slots.end());
    view.page_stride = most / kPageSlots + 1;
    view.slot_stride = most;
    pages.resize(static_cast<size_t>(n_heads * view.page_stride));
    std::iota(pages.rbegin(), pages.rend(), 0);
    for (int c = 0; c < kKvCodecs; ++c) {
      const int64_t page_bytes = backend.kv_page_bytes(static_cast<KvCodec>(c), d);
      pools[c] = Buffer(page_bytes * static_cast<int64_t>(pages.size()));
      view.pools[c] = {pools[c].data(), page_bytes};
    }
    view.pages = pages.data();
    view.n_slots = n_slots.data();
    view.n_kv_heads = n_heads;
    view.head_dim = d;
    view.codec = KvCodec::kF32;
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  void mix_codecs() {
    codecs.resize(pages.size());
    for (size_t i = 0; i < codecs.size(); ++i) codecs[i] = i % 2;  // f32 and bf16
    view.codecs = codecs.data();
  }
};

}  // namespace vlcache::ref_test
