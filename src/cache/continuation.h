// Where a sequence can continue with cached KV although its full pages have become codes: a row sees pages
// [1, coded_end) as codes and the others as values (base/contracts/kv.h). Values can become codes, always the same, but
// codes cannot become values again.
#pragma once

#include <cstdint>

#include "base/function_ref.h"

namespace vlcache {

// The forms in which a page is there, in all layers and heads.
struct CachedForms {
  bool values = false;  // a page of a layer without codes counts as both
  bool codes = false;
};

struct Continuation {
  int32_t n = 0;        // tokens; 0: none
  int32_t n_codes = 1;  // pages [1, n_codes) are there as codes, the others as values
};
// The most tokens, n_most at most, after which the next row finds every page as it must see it: the first page and
// pages [coded_end(n), ...) as values, the others as codes, or after the last of these as values. forms(i): of tokens
// [64 i, 64 i + 64).
Continuation continuation_place(int32_t n_most, FunctionRef<CachedForms(int32_t page)> forms);

}  // namespace vlcache
