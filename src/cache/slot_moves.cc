#include "cache/slot_moves.h"

#include <algorithm>

namespace vlcache {

void SlotMoves::reserve(int64_t n_slots) {
  const size_t n = static_cast<size_t>(n_slots);
  kept.reserve(n);
  from.reserve(n);
  to.reserve(n);
  links.reserve(static_cast<size_t>(pages_for(n_slots)));
}

void SlotMoves::link_pages(int32_t first_changed) {
  int32_t same = 0;
  while (same < n_kept() && kept[static_cast<size_t>(same)] == same) ++same;
  same = std::min(same, first_changed);
  first_page = same >= n_kept() ? pages_for(n_kept()) : same / kPageSlots;
  links.clear();
  for (int32_t page = first_page; page < pages_for(n_kept()); ++page) link_page(page);
}

void SlotMoves::link_page(int32_t page) {
  const int32_t begin = page * kPageSlots, end = std::min(begin + kPageSlots, n_kept());
  // If no slot keeps its place: the page from which no slot has to move up, so that no copy overwrites a source.
  int32_t best = kept[static_cast<size_t>(begin)] / kPageSlots, best_slots = 0;
  for (int32_t i = begin, source = -1, n = 0; i < end; ++i) {
    const int32_t slot = kept[static_cast<size_t>(i)];
    if (slot % kPageSlots != i - begin) continue;
    if (slot / kPageSlots != source) n = 0;  // shifts never shrink: slots from one page stand together
    source = slot / kPageSlots;
    if (++n > best_slots) best = source, best_slots = n;
  }
  links.push_back({.source = best, .write = best_slots < end - begin});
}

void SlotMoves::list_copies() {
  from.clear();
  to.clear();
  for (size_t i = 0; i < links.size(); ++i) list_page(first_page + static_cast<int32_t>(i), links[i]);
}

// Shifts never shrink from slot to slot. So in a page that gets a new place, first come the slots that move up inside
// it, then slots that stay, then slots that move down; the former are copied last to first, the latter first to last.
// Other pages never conflict: slots before a staying slot's page move to earlier pages, slots after it to later ones.
void SlotMoves::list_page(int32_t page, const PageLink& link) {
  const int32_t begin = page * kPageSlots, end = std::min(begin + kPageSlots, n_kept());
  const int32_t base = link.source * kPageSlots - begin;  // slot i of the result lies where slot base + i lay
  const auto add = [&](int32_t i) {
    from.push_back(kept[static_cast<size_t>(i)]);
    to.push_back(i);
  };
  int32_t i = begin;
  if (!link.copy) {
    while (i < end && kept[static_cast<size_t>(i)] < base + i) ++i;
    for (int32_t up = i; up-- > begin;) add(up);
    while (i < end && kept[static_cast<size_t>(i)] == base + i) ++i;
  }
  for (; i < end; ++i) add(i);
}

}  // namespace vlcache
