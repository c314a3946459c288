// KvCache: the K and V of one sequence. Per (layer, kv head) a list of pages (PageTable) and what their slots stand for
// (SlotTable); lengths differ. It decides nothing, and knows the sequence's tokens by index only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/kv.h"
#include "base/function_ref.h"
#include "cache/continuation.h"
#include "cache/kv_shape.h"
#include "cache/page_pools.h"
#include "cache/page_table.h"
#include "cache/slot_moves.h"
#include "cache/slot_table.h"
#include "ops/backend.h"

namespace vlcache {

// Places where a sequence can continue although its pages become codes.
inline constexpr int32_t kPlaceTokens = 2048;

// size: the one interface to page table, slot table and slot moves, to which it forwards.
class KvCache {
 public:
  // `capacity` > 0 fixes the slots per head: their pages are taken now, and append throws Error(kMemory) beyond it.
  KvCache(PagePools& pools, Backend& backend, const KvShape& shape, int64_t capacity = 0);
  // A shape whose layers all have the head size of the one pool.
  KvCache(PagePool& pool, Backend& backend, const KvShape& shape, int64_t capacity = 0);
  KvCache(KvCache&&) noexcept = default;
  KvCache& operator=(KvCache&&) = delete;

  // A second cache with the same contents that shares every page; the first write to a shared page copies it.
  KvCache fork() const;
  // The pages of tokens [64 i, 64 i + 64), all of which must be cached: pages[c], where c counts the kv heads of the
  // layers with KV of their own, layer by layer (n_columns of them).
  void list_pages(int32_t i, std::span<PageForms> pages) const;
  int64_t n_columns() const { return n_columns_; }
  // Zeroes the memory after the last slot of every head, so that a page leaves without data of other sequences.
  void clear_tails();
  // The bytes of such a page in the backend's layout, as the newest rows see it; to be written only while it is not
  // shared.
  std::span<std::byte> page(int32_t column, int32_t i);
  std::span<const std::byte> page(int32_t column, int32_t i) const;
  // Begins with n_tokens of another sequence, whose pages are shared until they are written; the cache must be empty.
  // groups[i] has the pages of tokens [64 i, 64 i + 64) in the order of list_pages, in the forms that a row after
  // n_tokens sees, at least; after the last of the pages that it sees as codes, encode() makes codes of values. Of
  // windowed layers nothing before held_begin() is shared.
  void share(std::span<const std::span<const PageForms>> groups, int32_t n_tokens);
  // Makes room in the tables (pages, slots, planes) for this many slots per head: growing to that size allocates
  // nothing but pages and moves no table.
  void reserve(int64_t n_slots);

  // Makes room for the K and V of tokens (indices in the sequence, ascending) in every kv head of `layer`; the view
  // ends with those slots, unwritten. `lengths` [n_kv_heads]: the caller's storage for the view's n_slots, so that
  // later appends of the step do not lengthen the view; null: the live lengths. A view is valid until tables grow
  // (reserve) or slots are removed. A layer that shares another's KV needs nothing: its view is the other's, up to the
  // last of `tokens`. biases: of the slots of each token (KvView::slot_bias); empty: 0. Throws Error(kOutOfPages) when
  // the pool is exhausted, Error(kMemory) when the capacity is; then no length of this layer has changed.
  KvView append(int32_t layer, std::span<const int32_t> tokens, int32_t* lengths = nullptr,
                std::span<const float> biases = {});
  KvView view(int32_t layer) const;

  // ---- pages that become codes (KvLayerShape::coded) --------------------------------------------------------------
  // To be called when the K and V of appended tokens are written, before they are attended to: turns the full pages
  // that the newest row sees as codes into codes. Views of the layer show it. Also makes some codes ahead, a share of
  // each step, so that no step has to make the codes of a whole block. Throws Error(kOutOfPages).
  void encode(int32_t layer);
  // Bytes of coded pages that attention has read: in each step and layer, the pages in view of the newest row, each of
  // them once however many rows read it. Failed steps do not count.
  int64_t coded_bytes_read() const { return coded_bytes_read_; }
  // Makes room for the K and V of tokens up to n_tokens, which the caller writes page by page: pages [1, n_codes), at
  // most coded_end(n_tokens), as codes, the others as values. Without codes as append(); otherwise the cache ends with
  // a full page. Pages of values among the first n_codes become codes. Of windowed layers the pages before
  // whole_window_begin(n_tokens) are not held; with such layers, too, the cache ends with a full page. Throws as
  // append() does; rollback_step undoes it.
  void append_coming(int32_t layer, int32_t n_tokens, int32_t n_codes);
  // No row of the step is attended to any more: frees the pages of values that later rows see as codes, and the pages
  // that no later row of a windowed layer sees, except at places. The slots of the latter keep their numbers.
  void end_step();
  // Until the next call with false, end_step frees nothing: the appended tokens will be truncated again.
  void hold_values(bool hold) { holds_values_ = hold; }
  // Another sequence may continue after n_tokens: the pages that it would see are kept from now on, of values and of
  // windowed layers, until forget_places, as long as the cache is complete.
  void keep_place(int32_t n_tokens) {
    places_.push_back(n_tokens);
    if (window_ > 0) window_places_.push_back(n_tokens);
  }
  // The same after every kPlaceTokens tokens; of windowed layers, after every eight windows.
  void keep_regular_places() { keeps_regular_places_ = true; }
  // Others have all of it in whole pages: frees the pages that were kept for places.
  void forget_places();
  // Others have the first n_tokens in whole pages: of windowed layers, these are no longer kept for places.
  void forget_window_places(int32_t n_tokens);
  // The first n slots of every head are seen whatever the window (AttentionPattern): their pages stay.
  void keep_sinks(int32_t n) { n_sinks_ = n; }
  // The most tokens, at most n_tokens, to which the cache can be truncated so that the next row sees every page as it
  // would if the rest had never been there.
  int32_t place_before(int32_t n_tokens) const;

  // The forms of a full page once n_total tokens are cached, of which this cache has the first ones.
  CachedForms forms_to_come(int32_t page, int32_t n_total) const;
  // The most tokens, at most n_tokens, after which another sequence will be able to continue then.
  int32_t place_to_come(int32_t n_tokens, int32_t n_total) const;

  // A failed step costs nothing: begin_step notes all lengths, rollback_step drops the slots appended since and frees
  // their pages. Neither allocates. What compact, sweep, truncate or clear did in between is not undone: they end the
  // step, and rollback_step then does nothing. hide is not undone either.
  void begin_step();
  void rollback_step() noexcept;

  // Hides a slot at once: its bias becomes -inf. sweep() frees its page.
  void hide(int32_t layer, int32_t head, int32_t slot);
  int32_t n_hidden(int32_t layer, int32_t head) const { return slots(layer).n_hidden(head); }
  // Moves the visible slots together and frees pages, in every head that has a page's worth of hidden slots. Allocates
  // nothing on the heap. Requires a free page for each shared page that it must write: throws Error(kOutOfPages) when
  // there are too few, and then has changed nothing.
  void sweep();
  // Keeps the slots that the plan lists, in the order of tokens, in as few pages as possible; frees the other pages.
  // The tables shrink too. Throws as sweep does.
  void compact(const KeepPlan& plan);
  // Drops every token from index n_tokens on; a merged slot stays if its first source is before it.
  void truncate(int32_t n_tokens);
  void clear();

  // Gives every slot `n` f32 values for policies, zero for new slots. They move with the slots; a merge has its
  // sources' sum.
  void set_planes(int32_t n);
  std::span<float> plane(int32_t layer, int32_t head, int32_t plane);  // [n_slots]

  Isa isa() const { return backend_->isa(); }

  // K and V of a head's first n slots as f32, as the newest rows see them: k, v [n, head_dim], n <= n_slots; either may
  // be empty. Slots that are not held read as zeros.
  void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const;
  // Bytes at most of the pages of n of a head's slots after a compaction: a page has values only if all its slots had.
  int64_t kept_bytes(int32_t layer, int32_t head, int32_t n) const;
  // Bytes of a page of `layer`, as K and V are written.
  int64_t page_bytes(int32_t layer) const;

  const KvShape& shape() const { return shape_; }
  int32_t n_slots(int32_t layer, int32_t head) const { return slots(layer).n_slots(head); }  // hidden ones included
  // Slots that a later row of the layer sees: not hidden, and within its window.
  int32_t n_visible(int32_t layer, int32_t head) const;
  // Whether the slot's page is there: no page before a window may be.
  bool holds(int32_t layer, int32_t head, int32_t slot) const {
    return owner(layer).pages.is_held(head, slot / kPageSlots);
  }
  // Slot -> token index; negative for a merged slot: merged_token(its first source).
  std::span<const int32_t> slot_tokens(int32_t layer, int32_t head) const { return slots(layer).tokens(head); }
  std::span<const int32_t> slot_places(int32_t layer, int32_t head) const { return slots(layer).places(head); }
  // Visits the pages that the cache holds, shared or not, including pages allocated ahead.
  void for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const;
  int64_t n_pages() const;
  int64_t bytes() const;               // of pages in use; spare ones are address space only
  int64_t bytes(KvCodec codec) const;  // pages with this codec alone
  int64_t table_bytes() const;         // of the tables beside the pages: page ids, tokens, places, biases, planes
  // Whether the slots of every head are the first tokens, one each, at least n_tokens of them: none of these was
  // evicted, hidden, merged or dropped; a window's passing is none of that. n_tokens is needed because a policy that
  // keeps the beginning of a prompt leaves heads that look like a shorter prompt's.
  bool complete(int32_t n_tokens) const;

 private:
  struct Layer {
    Layer(const TablePools& pools, const KvLayerShape& layer, int32_t n_own_heads)
        : shape(layer), pages(pools, n_own_heads), slots(n_own_heads), passed(static_cast<size_t>(n_own_heads), 0) {}
    Layer(const Layer& other)
        : shape(other.shape),
          pages(other.pages.fork()),
          slots(other.slots),
          windowed(other.windowed),
          passed(other.passed),
          first_column(other.first_column),
          switched(other.switched) {}
    Layer(Layer&&) noexcept = default;
    bool has_slots() const { return slots.n_heads() > 0; }

    KvLayerShape shape;
    PageTable pages;
    SlotTable slots;  // of no heads where the layer shares another's KV or has none
    bool windowed = false;
    std::vector<int32_t> passed;  // [n_heads] pages before it are freed already, except those that stay
    int32_t first_column = 0;
    // Pages whose codes are seen since this step, their values still there.
    struct Switched {
      int32_t head, page;
    };
    std::vector<Switched> switched;
    int64_t coded_bytes_seen = 0;  // by the newest row of this step
  };
  // A page that becomes codes.
  struct Encoding {
    int32_t head, page;
    bool shown;  // to the newest rows, from now on
  };
  // Describes in moves_ how a head changes; returns false if it does not.
  using LayOut = FunctionRef<bool(Layer& layer, int32_t head)>;

  KvCache(Backend& backend, const KvShape& shape, int64_t capacity, FunctionRef<TablePools(int32_t layer)> pools_of);
  KvCache(const KvCache& other);

  static size_t at(int32_t i) { return static_cast<size_t>(i); }
  Layer& owner(int32_t layer) { return layers_[at(shape_.owner(layer))]; }
  const Layer& owner(int32_t layer) const { return layers_[at(shape_.owner(layer))]; }
  const SlotTable& slots(int32_t layer) const { return owner(layer).slots; }
  KvView view_of(const Layer& layer) const;
  struct Row {
    const int32_t* pages;
    const uint8_t* codecs;  // null: all have values
  };
  KvView head_view(const Layer& layer, int32_t head, const Row& row) const;
  KvView page_view(const Layer& layer, const int32_t& page, KvCodec codec) const;

  void grow(Layer& layer, int32_t n_pages);
  void shrink(Layer& layer);
  void make_room(Layer& layer, size_t n);
  void own_pages(Layer& layer, int32_t head, int32_t end);
  int32_t mark_copies(const Layer& layer, int32_t head);
  void take_copies(const Layer& layer);
  void list_encodings(const Layer& layer, int32_t head);
  void make_codes(Layer& layer);
  void drop_attended(int32_t layer);
  int64_t coded_bytes_seen(int32_t layer) const;
  void show_forms(Layer& layer, int32_t head) noexcept;
  void drop_switched_codes(Layer& layer) noexcept;
  bool is_kept(int32_t page) const;
  bool is_kept_before_window(int32_t page) const;
  int32_t regular_place_after(int32_t page) const;
  int32_t passed_end(const Layer& layer, int32_t head) const;
  void free_passed();

  void reserve_scratch(int32_t n_pages);
  void for_each_head(FunctionRef<void(Layer& layer, int32_t head)> visit);
  void take_fresh_pages(LayOut lay_out);
  void move_slots(Layer& layer, int32_t head);
  void compact_head(Layer& layer, int32_t head, const KeepPlan::Head& plan);

  Backend* backend_;
  KvShape shape_;
  int64_t capacity_;
  std::vector<Layer> layers_;
  bool in_step_ = false, holds_values_ = false, keeps_regular_places_ = false;
  std::vector<int32_t> places_;         // from keep_place
  std::vector<int32_t> window_places_;  // windowed layers keep these, too
  int32_t window_ = 0;                  // largest window; 0: no layer has one
  int32_t n_sinks_ = 0;
  int32_t n_elsewhere_ = 0;   // tokens of forget_window_places
  bool was_complete_ = true;  // when pages were freed last
  int64_t coded_bytes_read_ = 0;
  int32_t n_columns_ = 0;
  int32_t last_encoded_ = -1;        // layer of this step
  std::vector<Encoding> encodings_;  // scratch of encode
  SlotMoves moves_;                  // scratch, sized for the tables
  FreshPages fresh_;                 // likewise
};

}  // namespace vlcache
