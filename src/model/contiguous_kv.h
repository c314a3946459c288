// ContiguousKv: the simplest KV cache a forward pass can run on: every slot of every token, in order, in pages of one
// pool. For tests.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/contracts/layer_hooks.h"
#include "model/config.h"
#include "ops/backend.h"

namespace vlcache {

// These positions as text's: three equal components.
inline std::vector<Position> as_text(std::span<const int32_t> positions) {
  std::vector<Position> out;
  for (const int32_t p : positions) out.push_back(Position::all(p));
  return out;
}

class ContiguousKv : public KvAccess {
 public:
  // Room for n_slots of each of n_seqs sequences.
  ContiguousKv(const TextConfig& config, Backend& backend, KvCodec codec, int64_t n_slots, int32_t n_seqs = 1)
      : n_heads_(static_cast<int32_t>(config.layer(0).n_kv_heads)),
        head_dim_(static_cast<int32_t>(config.layer(0).head_dim)),
        page_stride_(static_cast<int32_t>((n_slots + kPageSlots - 1) / kPageSlots)),
        codec_(codec),
        page_bytes_(backend.kv_page_bytes(codec, config.layer(0).head_dim)),
        lists_(static_cast<size_t>(config.n_layers * n_seqs)),
        n_seqs_(n_seqs) {
    const int64_t n_pages = int64_t{page_stride_} * n_heads_ * config.n_layers * n_seqs;
    memory_ = Buffer(n_pages * page_bytes_);
    int32_t next = 0;
    for (List& list : lists_) {
      for (int32_t i = 0; i < page_stride_ * n_heads_; ++i) list.pages.push_back(next++);
      list.positions.assign(static_cast<size_t>(n_heads_ * page_stride_ * kPageSlots), 0);
    }
  }

  KvView append(int layer, const RowRun& run, std::span<const int32_t> tokens, const Tensor&, const Tensor&) override {
    List& list = lists_[static_cast<size_t>(layer * n_seqs_ + run.seq)];
    const int32_t stride = page_stride_ * kPageSlots, begin = list.n_slots;
    CHECK(begin + run.n_rows <= stride);
    for (int32_t h = 0; h < n_heads_; ++h) {
      for (int32_t i = 0; i < run.n_rows; ++i) {
        list.positions[static_cast<size_t>(h * stride + begin + i)] = tokens[static_cast<size_t>(i)];
      }
    }
    list.n_slots += run.n_rows;
    KvView view;
    view.pools[static_cast<size_t>(codec_)] = {.base = memory_.data(), .page_bytes = page_bytes_};
    view.pages = list.pages.data();
    view.n_slots = lengths_.emplace_back(static_cast<size_t>(n_heads_), list.n_slots).data();
    view.slot_pos = list.positions.data();
    view.page_stride = page_stride_;
    view.slot_stride = stride;
    view.n_kv_heads = n_heads_;
    view.head_dim = head_dim_;
    view.codec = codec_;
    return view;
  }
  KvCodec codec() const override { return codec_; }
  int32_t n_slots(int layer, int32_t seq = 0) const {
    return lists_[static_cast<size_t>(layer * n_seqs_ + seq)].n_slots;
  }

 private:
  struct List {
    std::vector<int32_t> pages, positions;
    int32_t n_slots = 0;
  };
  int32_t n_heads_, head_dim_, page_stride_;
  KvCodec codec_;
  int64_t page_bytes_;
  std::vector<List> lists_;                   // [n_layers, n_seqs]
  std::deque<std::vector<int32_t>> lengths_;  // of every view handed out
  int32_t n_seqs_;
  Buffer memory_;
};

}  // namespace vlcache
