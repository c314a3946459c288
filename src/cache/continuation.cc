#include "cache/continuation.h"

#include <algorithm>

#include "cache/page_table.h"

namespace vlcache {

Continuation continuation_place(int32_t n_most, FunctionRef<CachedForms(int32_t page)> forms) {
  if (n_most <= 0 || !forms(0).values) return {};
  int32_t n_codes = 1;  // pages [1, n_codes) are there as codes
  while (n_codes < coded_end(n_most) && forms(n_codes).codes) ++n_codes;
  const auto values_end = [&](int32_t page) {
    while (page < pages_for(n_most) && forms(page).values) ++page;
    return page;
  };
  const int32_t after_codes = values_end(std::min(n_codes, pages_for(n_most)));
  // Block by block from the end: the rows of a block see the same pages as codes.
  constexpr int32_t kBlockTokens = kCodedBlockPages * kPageSlots;
  for (int32_t n = n_most; n > 0; n = n / kBlockTokens * kBlockTokens - 1) {
    const int32_t first = n / kBlockTokens * kBlockTokens, end = coded_end(n);
    const int32_t place = std::min(n, kPageSlots * (end < n_codes ? values_end(end) : after_codes));
    if (place >= first && place > 0) return {place, std::min(n_codes, coded_end(place))};
  }
  return {};
}

}  // namespace vlcache
