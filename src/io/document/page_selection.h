// PageSelection: which pages of a document are meant, as users write it: 3-7, 2, 1,4-6, 5-.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

struct PageRange {
  int32_t first = 1, last = 1;  // both included, from 1; last 0: the document's end
};
// In the order written; empty: all pages.
using PageSelection = std::vector<PageRange>;

// Throws Error(kInput) that begins with `where`: "expected pages such as 3-7 or 1,4-6, found '7-3'".
PageSelection parse_page_selection(std::string_view text, const std::string& where);

struct PageCount {
  int32_t n = 0;
  const char* document = "the PDF";  // which has them, in errors
};

// The numbers of the selected pages of a document, in the order written. Throws Error(kInput) for
// pages that it does not have, and for more than max_pages; `advice` follows there: what to write instead.
std::vector<int32_t> selected_pages(const PageSelection& selection, const PageCount& count, int32_t max_pages,
                                    const std::string& where, const std::string& advice);

// A path with a selection after its last '#', report.pdf#3-7, unless there is a file of the whole name.
struct PathAndPages {
  std::string path, pages;
};
PathAndPages split_pages(const std::string& path);

}  // namespace vlcache
