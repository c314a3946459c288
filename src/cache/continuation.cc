#include "cache/continuation.h"

#include <algorithm>
#include <vector>

#include "cache/page_table.h"

namespace vlcache {
namespace {

// How many pages up to and with a page are there in a row, of a layer's two forms.
struct FormRuns {
  int32_t values = 0, codes = 0;

  FormRuns next(bool has_values, bool has_codes) const {
    return {.values = has_values ? values + 1 : 0, .codes = has_codes ? codes + 1 : 0};
  }
};

}  // namespace

Continuation continuation_place(int32_t n_most, int32_t window, FunctionRef<CachedForms(int32_t page)> forms) {
  const int32_t n_pages = n_most > 0 ? pages_for(n_most) : 0;
  std::vector<FormRuns> all(static_cast<size_t>(n_pages) + 1), windowed(all.size());  // up to a page
  int32_t n_codes = 1;     // pages [1, n_codes) are there as codes
  bool has_first = false;  // the first page of windowed layers
  for (int32_t page = 0; page < n_pages; ++page) {
    const CachedForms form = forms(page);
    if (page == 0 && !form.values) return {};
    if (page == 0) has_first = form.window_values;
    const auto i = static_cast<size_t>(page);
    all[i + 1] = all[i].next(form.values, form.codes);
    windowed[i + 1] = windowed[i].next(form.window_values, form.window_codes && page > 0);
    if (page == n_codes && page < coded_end(n_most) && form.codes) ++n_codes;
  }
  const auto is_place = [&](int32_t n) {
    const int32_t end = pages_for(n), first_value = end - all[static_cast<size_t>(end)].values;
    if (first_value > std::min(coded_end(n), n_codes)) return false;
    if (window == 0) return true;
    // From the window's first page on: codes, then values.
    const int32_t begin = window_begin(n, window), values = end - windowed[static_cast<size_t>(end)].values;
    if (values <= begin) return true;
    if ((begin == 0 && !has_first) || values > coded_end(n)) return false;
    return values - std::max(1, begin) <= windowed[static_cast<size_t>(values)].codes;
  };
  // In a page, the row after its last token may see other codes than the rows in it; of these, the last sees least of
  // the pages before.
  for (int32_t page = n_pages; page-- > 0;) {
    for (const int32_t n : {(page + 1) * kPageSlots, (page + 1) * kPageSlots - 1}) {
      if (const int32_t place = std::min(n, n_most); is_place(place))
        return {place, std::min(n_codes, coded_end(place))};
    }
  }
  return {};
}

}  // namespace vlcache
