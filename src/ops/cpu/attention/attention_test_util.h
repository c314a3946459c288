// Makes sequences with random queries, keys and values for the tests of attention and pages, and the naive rule of
// which row sees which slot.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/numeric/kv_codec.h"
#include "ops/backend.h"
#include "ops/cpu/attention/kv_pages.h"

namespace vlcache::cpu::testing {

// size: all that cases differ in.
struct TestCase {
  int d = 64;
  int group = 2;
  int n_rows = 1;
  int n_slots = 100;
  int n_kv_heads = 2;
  int window = 0;
  int n_sinks = 0;
  bool q_sinks = false;
  bool slot_pos = false;
  bool bias = false;
  bool hidden = false;       // every third page and every fifth slot, whose K and V are NaN where a whole page is
  bool scattered = false;    // rows see up to any slot, in no order
  bool mixed = false;        // codecs alternate from page to page
  bool blocks = false;       // pages [1, coded_end) of the last row are `coded`
  bool born = false;         // and the pages of values that they were made from are there, for earlier rows
  bool sink_logits = false;  // every other query head has one, of which some outweigh all slots
  bool ragged = false;       // heads have n_slots, n_slots - 77, ... slots
  float q_scale = 1.0f;
  KvCodec codec = KvCodec::kBF16;
  KvCodec coded = KvCodec::kInt8;
  DType compute = DType::kBF16;
  uint32_t seed = 1;

  int n_heads() const { return group * n_kv_heads; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
  std::string describe() const {
    return "d " + std::to_string(d) + " group " + std::to_string(group) + " rows " + std::to_string(n_rows) +
           " slots " + std::to_string(n_slots) + " window " + std::to_string(window) + " sinks " +
           std::to_string(n_sinks) + (q_sinks ? " q_sinks" : "") + (slot_pos ? " slot_pos" : "") +
           (bias ? " bias" : "") + (hidden ? " hidden" : "") + (scattered ? " scattered" : "") +
           (mixed ? " mixed" : "") + (blocks ? " blocks" : "") + (born ? " born" : "") +
           (sink_logits ? " sink logits" : "") + " " + std::string(kv_codec_name(codec)) + " pages" +
           (blocks ? " " + std::string(kv_codec_name(coded)) : "") + (compute == DType::kF32 ? " f32" : " bf16");
  }
};

// A matrix of random values in either dtype.
struct Rows {
  std::vector<std::byte> bytes;
  int64_t width;
  DType dtype;
  Rows(int64_t n, int64_t width_in, DType dtype_in, std::mt19937& rng)
      : bytes(static_cast<size_t>(n * width_in * dtype_bytes(dtype_in))), width(width_in), dtype(dtype_in) {
    std::uniform_real_distribution<float> uniform(-2, 2);
    for (int64_t i = 0; i < n * width; ++i) {
      const float x = uniform(rng);
      if (dtype == DType::kF32) reinterpret_cast<float*>(bytes.data())[i] = x;
      if (dtype == DType::kBF16) reinterpret_cast<bf16*>(bytes.data())[i] = to_bf16(x);
    }
  }
  float value(int64_t i, int64_t c) const {
    const int64_t at = i * width + c;
    return dtype == DType::kF32 ? reinterpret_cast<const float*>(bytes.data())[at]
                                : to_float(reinterpret_cast<const bf16*>(bytes.data())[at]);
  }
};

// size: every buffer that an attention call points to.
struct TestData {
  TestCase c;
  int max_slots;
  std::vector<int32_t> n_slots, positions, slot_pos, pages, born, n_after;
  std::vector<uint8_t> codecs;
  std::vector<float> q, q_sinks, bias, lse;  // q: as the compute dtype holds it
  std::vector<float> sink_logits;            // [H] or empty
  std::vector<float> k, v;                   // [Hk, max_slots, d], as the page of each slot was born
  std::vector<float> k_coded, v_coded;       // the same as codes
  std::vector<bf16> q_bf16, q_sinks_bf16, out_bf16;
  std::vector<float> out_f32;
  Buffer pools[kKvCodecs];
  Tensor q_sinks_view;
  int64_t page_stride, slot_stride;

  explicit TestData(const TestCase& test_case) : c(test_case), max_slots(std::max(c.n_slots, 1)) {
    std::mt19937 rng(c.seed);
    for (int h = 0; h < c.n_kv_heads; ++h) n_slots.push_back(std::max(0, c.n_slots - (c.ragged ? 77 * h : 0)));
    for (int h = 0; h < c.n_heads() && c.sink_logits; ++h) {
      sink_logits.push_back(h % 2 == 1 ? -std::numeric_limits<float>::infinity() : static_cast<float>(h % 5 * 6 - 1));
    }
    page_stride = (max_slots + kPageSlots - 1) / kPageSlots + 1;
    slot_stride = max_slots + 3;
    make_rows(rng);
    make_pages(rng);
  }

  size_t at(int i, int h, int x) const { return static_cast<size_t>((i * c.n_heads() + h) * c.d + x); }
  size_t slot_at(int head, int slot) const { return static_cast<size_t>(head * slot_stride + slot); }

  // Slots up to and with row i's own.
  int limit(size_t i, size_t query_head) const {
    return n_slots[query_head / static_cast<size_t>(c.group)] - n_after[i];
  }
  bool sees(int i, int head, int slot) const {
    const int n = n_slots[static_cast<size_t>(head)] - n_after[static_cast<size_t>(i)];
    if (slot >= n || is_hidden(slot)) return false;
    if (c.window <= 0 || slot < c.n_sinks) return true;
    const int query = c.slot_pos ? positions[static_cast<size_t>(i)] : n - 1;
    return (c.slot_pos ? slot_pos[slot_at(head, slot)] : slot) > query - c.window;
  }

  bool is_hidden(int slot) const { return c.hidden && (slot / kPageSlots % 3 == 1 || slot % 5 == 2); }
  KvCodec codec_of(int head, int page) const {
    return c.mixed || c.blocks ? static_cast<KvCodec>(codecs[static_cast<size_t>(head * page_stride + page)]) : c.codec;
  }
  // Whether a row before slot `limit` sees a page as codes.
  bool sees_codes(int head, int page, int limit) const {
    if (is_coded(codec_of(head, page))) return !c.born || (page > 0 && page < coded_end(limit - 1));
    return false;
  }
  const float* k_row(int head, int slot, int limit) const {
    return &(sees_codes(head, slot / kPageSlots, limit) ? k_coded : k)[row_at(head, slot)];
  }
  const float* v_row(int head, int slot, int limit) const {
    return &(sees_codes(head, slot / kPageSlots, limit) ? v_coded : v)[row_at(head, slot)];
  }
  size_t row_at(int head, int slot) const { return static_cast<size_t>((head * max_slots + slot) * c.d); }

  KvView view() {
    KvView view{.pages = pages.data(),
                .codecs = c.mixed || c.blocks ? codecs.data() : nullptr,
                .born = c.born ? born.data() : nullptr,
                .n_slots = n_slots.data(),
                .slot_bias = c.bias || c.hidden ? bias.data() : nullptr,
                .slot_pos = c.slot_pos ? slot_pos.data() : nullptr,
                .page_stride = static_cast<int32_t>(page_stride),
                .slot_stride = static_cast<int32_t>(slot_stride),
                .n_kv_heads = c.n_kv_heads,
                .head_dim = c.d,
                .codec = c.codec};
    for (int i = 0; i < kKvCodecs; ++i) view.pools[i] = {pools[i].data(), kv_page_bytes(static_cast<KvCodec>(i), c.d)};
    return view;
  }
  AttentionArgs args() {
    AttentionArgs args{.scale = c.scale(), .window = c.window, .n_sinks = c.n_sinks};
    if (c.slot_pos) args.positions = positions.data();
    if (c.q_sinks) {
      q_sinks_view = rows_tensor(q_sinks, q_sinks_bf16);
      args.q_sinks = &q_sinks_view;
    }
    args.sink_logits = sink_logits;
    args.lse = Tensor(lse.data(), DType::kF32, {c.n_rows, c.n_heads()});
    return args;
  }
  // Writes the rows again, all of them as codes: k and v were changed.
  void become_codes(KvCodec codec) {
    c.codec = codec;
    encode_rows();
    for (int h = 0; h < c.n_kv_heads; ++h) write_head(h);
  }
  Tensor q_tensor() { return rows_tensor(q, q_bf16); }
  Tensor out_tensor() { return rows_tensor(out_f32, out_bf16); }
  float out_value(size_t i) const { return c.compute == DType::kF32 ? out_f32[i] : to_float(out_bf16[i]); }

 private:
  Tensor rows_tensor(std::vector<float>& f32, std::vector<bf16>& half) const {
    void* data = c.compute == DType::kF32 ? static_cast<void*>(f32.data()) : half.data();
    return Tensor(data, c.compute, {c.n_rows, c.n_heads(), c.d});
  }

  void make_rows(std::mt19937& rng) {
    std::uniform_real_distribution<float> uniform(-2, 2);
    const size_t n = static_cast<size_t>(c.n_rows * c.n_heads() * c.d);
    for (auto [f32, half] : {std::pair{&q, &q_bf16}, std::pair{&q_sinks, &q_sinks_bf16}}) {
      for (size_t i = 0; i < n; ++i) {
        const float x = uniform(rng) * c.q_scale;
        half->push_back(to_bf16(x));
        f32->push_back(c.compute == DType::kF32 ? x : to_float(half->back()));
      }
    }
    out_f32.assign(n, NAN);
    out_bf16.assign(n, to_bf16(NAN));
    lse.assign(static_cast<size_t>(c.n_rows * c.n_heads()), NAN);
    for (int i = 0; i < c.n_rows; ++i) {
      n_after.push_back(c.scattered ? (i * 37 + 5) % (c.n_slots + 2) : c.n_rows - 1 - i);
      positions.push_back(2 * (c.n_slots - n_after.back() - 1));
    }
  }

  // Pages are full of NaN before slots are written, as recycled ones may be, and scattered over the pool.
  void make_pages(std::mt19937& rng) {
    std::uniform_real_distribution<float> uniform(-2, 2);
    const int64_t n_pages = c.n_kv_heads * page_stride;
    for (int i = 0; i < kKvCodecs; ++i) {
      pools[i] = Buffer(n_pages * kv_page_bytes(static_cast<KvCodec>(i), c.d));
      std::memset(pools[i].data(), 0xff, static_cast<size_t>(pools[i].bytes()));
    }
    for (int64_t i = 0; i < n_pages; ++i) {
      pages.push_back(static_cast<int32_t>(i));
      codecs.push_back(static_cast<uint8_t>(c.blocks ? codec_in_blocks(i) : static_cast<KvCodec>(i / 2 % 2)));
    }
    std::shuffle(pages.begin(), pages.end(), rng);
    if (c.blocks) {
      born = pages;
      std::shuffle(pages.begin(), pages.end(), rng);
      for (size_t i = 0; i < pages.size(); ++i) {
        if (static_cast<KvCodec>(codecs[i]) == c.codec) pages[i] = born[i], born[i] = -1;
      }
    }
    for (int i = 0; i < c.n_kv_heads * max_slots * c.d; ++i) {
      const int slot = i / c.d % max_slots, head = i / c.d / max_slots;
      const KvCodec codec = codec_of(head, slot / kPageSlots);
      const bool rounds = (is_coded(codec) ? c.codec : codec) == KvCodec::kBF16;
      for (std::vector<float>* x : {&k, &v}) {
        const float value = uniform(rng);
        x->push_back(rounds ? to_float(to_bf16(value)) : value);
      }
    }
    encode_rows();
    bias.assign(static_cast<size_t>(c.n_kv_heads * slot_stride), NAN);
    slot_pos.assign(bias.size(), -1);
    for (int h = 0; h < c.n_kv_heads; ++h) {
      for (int j = 0; j < n_slots[static_cast<size_t>(h)]; ++j) {
        const float value = uniform(rng);
        bias[slot_at(h, j)] = is_hidden(j) ? -std::numeric_limits<float>::infinity() : c.bias ? value : 0.0f;
        slot_pos[slot_at(h, j)] = 2 * j;
      }
      write_head(h);
    }
  }

  KvCodec codec_in_blocks(int64_t i) const {
    const int64_t page = i % page_stride, n = n_slots[static_cast<size_t>(i / page_stride)];
    return page > 0 && page < coded_end(n - 1) ? c.coded : c.codec;
  }

  void encode_rows() {
    k_coded = k, v_coded = v;
    if (!c.blocks && !is_coded(c.codec)) return;
    const auto d = static_cast<size_t>(c.d);
    const KvCodec codec = c.blocks ? c.coded : c.codec;
    for (auto [x, half] : {std::pair{&k_coded, k_codec(codec)}, {&v_coded, v_codec(codec)}}) {
      std::vector<std::byte> row(static_cast<size_t>(coded_bytes(half, c.d)));
      for (size_t at = 0; at < x->size(); at += d) {
        encode_head(half, {&(*x)[at], d}, row.data());
        decode_head(half, row.data(), {&(*x)[at], d});
      }
    }
  }

  void write_head(int head) {
    const KvView kv = view();
    const int64_t row = int64_t{4} * c.d;
    for (int begin = 0; begin < n_slots[static_cast<size_t>(head)]; begin += kPageSlots) {
      const int n = std::min(kPageSlots, n_slots[static_cast<size_t>(head)] - begin), page = begin / kPageSlots;
      if (c.hidden && page % 3 == 1) continue;  // must not be read
      const size_t first = static_cast<size_t>((head * max_slots + begin) * c.d);
      const HeadRows rows{reinterpret_cast<const std::byte*>(&k[first]), reinterpret_cast<const std::byte*>(&v[first]),
                          row, row, DType::kF32};
      write_slots({kv.page(head, page), codec_of(head, page), c.d}, rows, 0, n);
      if (kv.born == nullptr || born[static_cast<size_t>(head * page_stride + page)] < 0) continue;
      const KvView::Form form = kv.form(head, page, 0);
      write_slots({form.data, form.codec, c.d}, rows, 0, n);
    }
  }
};

}  // namespace vlcache::cpu::testing
