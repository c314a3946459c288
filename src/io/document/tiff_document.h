// TiffDocument turns the pages of a TIFF, a scanned document, into PNG files, as PdfReader does for PDFs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "io/document/page_cache.h"
#include "io/document/pdf.h"
#include "io/image/image.h"

namespace vlcache {

// Whether a file is read as pages: a PDF, or a TIFF of any number of pages.
bool is_document(std::span<const std::byte> bytes);

// Whether the bytes are a TIFF of more than one page. Throws Error as tiff_pages does.
bool has_more_pages(std::span<const std::byte> bytes, const std::string& where);

// Any thread.
class TiffDocument {
 public:
  // The other outlives this.
  explicit TiffDocument(PageCache& known) : known_(known) {}

  // Pages in the order selected, each in all of its pixels, which are within `limits`, and without a text. Throws
  // Error: kInput (damaged, pages that it does not have), kUnsupported (a variant of TIFF), kMemory (beyond a limit),
  // kCancelled.
  std::vector<PdfPage> read(std::span<const std::byte> tiff, const PdfRequest& request, const ImageLimits& limits);

 private:
  static constexpr int kPlaces = 2;  // pages that are decoded at once: the other processors are the inference's

  PageCache& known_;
  std::counting_semaphore<> places_{kPlaces};
};

}  // namespace vlcache
