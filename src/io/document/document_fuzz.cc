// Fuzzes page selections and the reader of pdfinfo's output.
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/document/page_selection.h"
#include "io/document/pdf_info.h"

FUZZ_TARGET(document) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const PdfInfo info = parse_pdf_info(text);
  for (const auto& [page, page_size] : info.sizes) {
    if (page < 1 || !(page_size.longer() > 0)) std::abort();
  }
  try {
    const PageSelection selection = parse_page_selection(text.substr(0, text.find('\n')), "fuzz");
    const int32_t n_pages = info.n_pages > 0 ? info.n_pages : 50;
    for (const int32_t page : selected_pages(selection, {.n = n_pages}, 100, "fuzz", "")) {
      if (page < 1 || page > n_pages) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
