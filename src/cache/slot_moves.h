// SlotMoves: plans how the slots of a head are moved together: which page gets which place, and which slots are copied
// in which order. Pure arithmetic on indices.
//
// Slots that shift by a multiple of 64 keep their place inside a page, so their page is relinked instead of copied.
// Each page of the result reuses the old page that gives it most such slots, and only the other slots are copied: a
// window sliding after four sinks copies four slots, not itself.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_table.h"

namespace vlcache {

struct SlotMoves {
  std::vector<int32_t> kept;    // in: slot i of the result is old slot kept[i]; strictly ascending
  int32_t first_page = 0;       // pages before it stay as they are
  std::vector<PageLink> links;  // per page of the result from first_page on; sources ascend
  // Slots to copy. In this order no slot is overwritten before it is read, though a page can be both source and target.
  std::vector<int32_t> from, to;

  // Makes room for heads of n_slots slots, so that the functions below do not allocate.
  void reserve(int64_t n_slots);
  // Fills first_page and links. `first_changed`: slots of the result from there on may be overwritten afterwards.
  void link_pages(int32_t first_changed);
  // Fills from and to, once each link's `copy` is known.
  void list_copies();

 private:
  void link_page(int32_t page);
  void list_page(int32_t page, const PageLink& link);
  int32_t n_kept() const { return static_cast<int32_t>(kept.size()); }
};

}  // namespace vlcache
