#include "engine/prompt/document_reader.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "engine/prompt/image_reader.h"
#include "io/image/tiff.h"

namespace vlcache {
namespace {

constexpr size_t kMaxName = 100;  // bytes

// In one line: a file's name may be any text.
std::string shown_name(const std::string& name) {
  if (name.empty()) return "the document";
  std::string shown = name.size() > kMaxName ? to_valid_utf8(std::string_view(name).substr(0, kMaxName)) : name;
  std::ranges::replace_if(
      shown, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return shown;
}

// The text of a page between two lines that say what it is.
std::string text_of(const PdfPage& page, const std::string& name) {
  if (page.text.empty()) return "";
  const std::string number = "page " + std::to_string(page.number);
  return "\n[Text of " + number + " of " + name + "]\n" + page.text + "\n[End of " + number + "]\n";
}

}  // namespace

std::vector<EncodedImage> DocumentReader::read(const DocumentRequest& request) {
  const EncodedImage& document = request.document;
  const auto longer_side = [&](const PdfPageSize& size) {
    return images_.longer_side(size.width, size.height, document.options.settings);
  };
  const PdfRequest asked{.where = document.where,
                         .pages = request.pages,
                         .max_pages = request.max_pages,
                         .advice = request.advice,
                         .text = request.text,
                         .owner = document.owner,
                         .cancelled = request.cancelled,
                         .longer_side = longer_side};
  std::vector<PdfPage> pages = is_tiff(*document.bytes) ? tiffs_.read(*document.bytes, asked, document.limits)
                                                        : pdfs_.read(*document.bytes, asked);
  const std::string name = shown_name(request.name);
  std::vector<EncodedImage> images;
  for (PdfPage& page : pages) {
    EncodedImage& image = images.emplace_back(document);
    image.bytes = std::move(page.image);
    image.text = text_of(page, name);
    if (request.numbered) image.where += "#" + std::to_string(page.number);
  }
  return images;
}

}  // namespace vlcache
