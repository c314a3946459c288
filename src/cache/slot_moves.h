// SlotMoves: how the slots of a head come to lie together. Which page takes which place, and which slots are copied in
// which order. Pure arithmetic on indices.
//
// Slots that shift by a multiple of 64 keep their place inside a page, so their page is relinked instead of copied. Per
// page of the result the page of today that gives it most such slots takes its place, and only the others are copied:
// a window that slides on behind four sinks copies four slots, not itself.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_table.h"

namespace vlcache {

struct SlotMoves {
  std::vector<int32_t> kept;    // in: slot i of the result is slot kept[i] of today; strictly ascending
  int32_t first_page = 0;       // pages before it stay as they are
  std::vector<PageLink> links;  // per page of the result from first_page on; sources ascend
  // Slots to copy. In this order none is overwritten before it is read, though pages are source and target at once.
  std::vector<int32_t> from, to;

  // Room for heads of so many slots, so that nothing below allocates.
  void reserve(int64_t n_slots);
  // Fills first_page and links. `first_changed`: slots of the result from there on may be overwritten afterwards.
  void link_pages(int32_t first_changed);
  // Fills from and to, when it is known which links need a copy.
  void list_copies();

 private:
  void link_page(int32_t page);
  void list_page(int32_t page, const PageLink& link);
  int32_t n_kept() const { return static_cast<int32_t>(kept.size()); }
};

}  // namespace vlcache
