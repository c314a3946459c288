// PdfInfo: what `pdfinfo -f N -l M` of poppler-utils prints about a PDF.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

namespace vlcache {

struct PdfPageSize {
  double width = 0, height = 0;  // points of 1/72 inch as the page is shown, both > 0 and finite

  double longer() const { return width > height ? width : height; }
};

struct PdfInfo {
  int32_t n_pages = 0;                   // 0: the output names no number of pages
  std::map<int32_t, PdfPageSize> sizes;  // by page; pages without a usable size are left out
};

// Reads any bytes. Lines of the document's own texts, its title among them, may look like pdfinfo's; these come first,
// so the last line of a kind counts.
PdfInfo parse_pdf_info(std::string_view output);

}  // namespace vlcache
