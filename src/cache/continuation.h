// Where a sequence can continue with cached KV although its full pages have become codes: a row sees pages
// [1, coded_end) as codes and the others as values (base/contracts/kv.h). Values can become codes, always the same, but
// codes cannot become values again. And although layers with a window have freed the pages that no later row sees.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/contracts/kv.h"
#include "base/function_ref.h"

namespace vlcache {

// The first page that the row after n_tokens sees of a layer with a window.
constexpr int32_t window_begin(int32_t n_tokens, int32_t window) {
  return std::max(0, n_tokens - window + 1) / kPageSlots;
}
// The same after the whole pages of n_tokens, to which a sequence is taken back when it is preempted.
constexpr int32_t whole_window_begin(int32_t n_tokens, int32_t window) {
  return window_begin(n_tokens / kPageSlots * kPageSlots, window);
}
// Windowed layers keep this many pages more before a window: a sequence may be taken back by so many tokens, and a
// record of prefixes, which has four pages, is whole where the window begins inside it.
inline constexpr int32_t kPagesBeforeWindow = 4;
constexpr int32_t held_begin(int32_t n_tokens, int32_t window) {
  return std::max(0, window_begin(n_tokens, window) - kPagesBeforeWindow);
}

// The forms in which a page is there, in all heads; of no layer: both.
struct CachedForms {
  // Of the layers that keep all pages. A page of a layer without codes counts as both.
  bool values = false;
  bool codes = false;
  // Of the windowed layers (KvShape::is_windowed); neither: it was freed.
  bool window_values = false;
  bool window_codes = false;
};

struct Continuation {
  int32_t n = 0;        // tokens; 0: none
  int32_t n_codes = 1;  // pages [1, n_codes) are there as codes, the others as values, in layers that keep all
};
// The most tokens, n_most at most, after which the next row finds every page as it must see it: the first page and
// pages [coded_end(n), ...) as values, the others as codes, or after the last of these as values. Of windowed layers,
// the same of the pages from window_begin(n, window) on; window = 0: there is none. forms(i): of tokens [64 i, 64 i +
// 64).
Continuation continuation_place(int32_t n_most, int32_t window, FunctionRef<CachedForms(int32_t page)> forms);

}  // namespace vlcache
