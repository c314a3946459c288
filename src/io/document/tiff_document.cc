#include "io/document/tiff_document.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "io/document/page_selection.h"
#include "io/image/encode.h"
#include "io/image/tiff.h"

namespace vlcache {
namespace {

// Throws Error where the rest of a request's pages would be in vain, or too late.
class PageDeadline {
 public:
  explicit PageDeadline(const PdfRequest& request) : request_(request) {}

  void check() const {
    if (request_.cancelled && request_.cancelled()) {
      throw Error(ErrorCode::kCancelled, request_.where + ": cancelled while the TIFF was read");
    }
    if (Clock::now() < end_) return;
    throw Error(ErrorCode::kInput, request_.where + ": its pages took longer than " +
                                       std::to_string(PdfReader::kMaxTime.count()) + " s to read; select fewer");
  }

 private:
  const PdfRequest& request_;
  const Clock::time_point end_ = Clock::now() + PdfReader::kMaxTime;
};

// Holds one of the semaphore's places; the wait ends with the request.
class PagePlace {
 public:
  PagePlace(std::counting_semaphore<>& places, const PageDeadline& deadline) : places_(places) {
    while (!places_.try_acquire_for(std::chrono::milliseconds(50))) deadline.check();
  }
  ~PagePlace() { places_.release(); }
  PagePlace(const PagePlace&) = delete;
  PagePlace& operator=(const PagePlace&) = delete;

 private:
  std::counting_semaphore<>& places_;
};

}  // namespace

bool is_document(std::span<const std::byte> bytes) {
  return is_tiff(bytes) || (media_type(bytes).empty() && is_pdf(bytes));
}

bool has_more_pages(std::span<const std::byte> bytes, const std::string& where) {
  return is_tiff(bytes) && tiff_pages(bytes, where).size() > 1;
}

std::vector<PdfPage> TiffDocument::read(std::span<const std::byte> tiff, const PdfRequest& request,
                                        const ImageLimits& limits) {
  const PageSelection selection = parse_page_selection(request.pages, request.where);
  const std::vector<uint64_t> directories = tiff_pages(tiff, request.where);
  const PageCount count{.n = static_cast<int32_t>(directories.size()), .document = "the TIFF"};
  const PageDeadline deadline(request);
  Sha256 hash;
  hash.add(tiff);
  const Sha256Digest file = hash.finish();
  int64_t n_bytes = 0;
  std::vector<PdfPage> pages;
  for (const int32_t number : selected_pages(selection, count, request.max_pages, request.where, request.advice)) {
    deadline.check();
    const Sha256Digest key = PageCache::key_of(request.owner, file, number, kWholePage);
    PdfPage& page = pages.emplace_back(PdfPage{.number = number, .image = known_.find(key), .text = ""});
    if (page.image == nullptr) {
      const PagePlace place(places_, deadline);
      const std::string where = request.where + (count.n > 1 ? ": page " + std::to_string(number) : "");
      const Image image = decode_tiff_page(tiff, directories[static_cast<size_t>(number) - 1], where, limits);
      page.image = std::make_shared<const std::vector<std::byte>>(encode_page(image));
      known_.remember(key, page.image);
    }
    n_bytes += std::ssize(*page.image);
    check_page_bytes(n_bytes, request.where);
  }
  return pages;
}

}  // namespace vlcache
