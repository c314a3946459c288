// KvCache: the K and V of one sequence. Per (layer, kv head) a list of pages; lengths differ. It decides nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/kv.h"
#include "cache/page_pool.h"
#include "ops/backend.h"

namespace vlcache {

struct KvShape {
  int32_t n_layers = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  KvCodec codec = KvCodec::kBF16;
};

class KvCache {
 public:
  // `capacity` > 0 fixes the slots per head: their pages are taken now, and append throws Error(kMemory) beyond it.
  KvCache(PagePool& pool, Backend& backend, const KvShape& shape, int64_t capacity = 0);
  ~KvCache() { clear(); }
  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&&) = delete;
  KvCache(const KvCache&) = delete;

  // A second cache with the same contents that shares every page; the first write to a shared page copies it.
  KvCache fork() const;

  // Tokens of the sequence, in order; what a slot's token index refers to.
  void add_tokens(std::span<const SlotMeta> tokens);
  // Replaces the tokens; those that slots refer to must be among them.
  void set_tokens(std::span<const SlotMeta> tokens) { tokens_.assign(tokens.begin(), tokens.end()); }
  std::span<const SlotMeta> tokens() const { return tokens_; }
  // Room in page tables for this many slots per head, so that growing up to there allocates nothing but pages.
  void reserve(int64_t n_slots);

  // Room for the K and V of tokens (indices, ascending) in every kv head of `layer`; the view ends with the new slots,
  // unwritten.
  KvView append(int32_t layer, std::span<const int32_t> tokens);
  KvView view(int32_t layer) const;
  // Keeps what the plan says, in position order, in as few pages as that takes; gives the other pages back.
  void compact(const KeepPlan& plan);
  // Forgets every token from index n_tokens on (a merged slot stays if it began before).
  void truncate(int64_t n_tokens);
  void clear();

  const KvShape& shape() const { return shape_; }
  int32_t n_slots(int32_t layer, int32_t head) const { return layers_[at(layer)].n_slots[at(head)]; }
  // Slot -> token index, -1 for a merged slot.
  std::span<const int32_t> slot_tokens(int32_t layer, int32_t head) const;
  int64_t n_pages() const;
  int64_t bytes() const {
    return n_pages() * pool_->page_bytes();
  }  // of pages in use; spare ones are address space only
  // Slots are the first tokens, one each: nothing was evicted, merged or left out.
  bool exact() const;

 private:
  struct Layer {
    std::vector<int32_t> pages;    // [n_kv_heads, page_stride], the first n_pages[h] of a row are in use
    std::vector<int32_t> n_pages;  // [n_kv_heads]
    std::vector<PageRun> spare;    // [n_kv_heads] pages taken ahead, so that a head's pages lie together; never written
    std::vector<int32_t> n_slots;  // [n_kv_heads]
    std::vector<int32_t> slot_token;  // [n_kv_heads, slot_stride]
    std::vector<int32_t> slot_pos;    // [n_kv_heads, slot_stride]
    std::vector<float> slot_bias;     // [n_kv_heads, slot_stride], empty while all are 0
    int32_t page_stride = 0;
    bool sparse = false;  // some slot's position is not its index
    int32_t slot_stride() const { return page_stride * kPageSlots; }
  };
  static size_t at(int32_t i) { return static_cast<size_t>(i); }
  void grow(Layer& layer, int32_t page_stride);
  int32_t* page_row(Layer& layer, int32_t head) { return layer.pages.data() + int64_t{head} * layer.page_stride; }
  KvView view_of(const Layer& layer) const;
  void take_pages(Layer& layer, int32_t head, int32_t end);
  void append_head(Layer& layer, int32_t head, std::span<const int32_t> tokens);
  int32_t next_page(Layer& layer, int32_t head, int32_t needed);
  void own_page(Layer& layer, int32_t head, int32_t index);
  std::vector<float> read_merges(const KvView& view, int32_t head, const std::vector<KeepPlan::Merge>& merges);
  void move_slots(Layer& layer, int32_t head, int32_t first, std::span<const int32_t> from);
  void compact_head(Layer& layer, int32_t head, const KeepPlan::Head& plan);
  void drop_pages(Layer& layer, int32_t head, int32_t keep_pages);

  PagePool* pool_;
  Backend* backend_;
  KvShape shape_;
  int64_t capacity_;
  std::vector<Layer> layers_;
  std::vector<SlotMeta> tokens_;
};

}  // namespace vlcache
