// DocumentReader turns pages of a PDF or a TIFF into images of a prompt. A PDF's are drawn as large as the image
// processor shows them, a TIFF's keep their own size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/prompt/encoded_image.h"
#include "io/document/pdf.h"
#include "io/document/tiff_document.h"

namespace vlcache {

class ImageReader;

struct DocumentRequest {
  // The document's bytes; the rest is that of its pages' images: limits, options, owner. `where` begins errors.
  EncodedImage document;
  std::string name;                           // in the text of pages; empty: "the document"
  std::string pages;                          // 3-7, 2, 1,4-6; empty: all
  int32_t max_pages = PdfRequest::kMaxPages;  // of these at most
  std::string advice;                         // how fewer pages are selected, in the error for too many
  bool text = false;                          // EncodedImage::text has the pages' texts
  bool numbered = false;                      // `where` of an image also names its page: report.pdf#3
  std::function<bool()> cancelled = nullptr;  // asked while programs run
};

// Any thread.
class DocumentReader {
 public:
  // The other outlives this.
  explicit DocumentReader(const ImageReader& images) : images_(images) {}

  // Throws Error as PdfReader::read and TiffDocument::read do.
  std::vector<EncodedImage> read(const DocumentRequest& request);
  void clear() { pdfs_.clear(); }

 private:
  const ImageReader& images_;
  PdfReader pdfs_;
  TiffDocument tiffs_{pdfs_.known()};
};

}  // namespace vlcache
