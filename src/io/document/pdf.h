// PdfReader turns pages of a PDF into PNG files and texts. poppler-utils does the work, in programs of their own that
// are killed at limits of time, memory and output, and run in a sandbox (base/os/limited_process.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "base/os/limited_process.h"
#include "io/document/page_cache.h"
#include "io/document/pdf_info.h"

namespace vlcache {

// Whether a file begins as PDFs do: within the first KiB, as viewers allow.
bool is_pdf(std::span<const std::byte> bytes);

// Whether poppler-utils is installed. The first call, or the first PDF, chooses the sandbox of its programs by drawing
// a page, and warns on standard error of what this machine leaves out of it.
bool can_read_pdfs();

struct PdfRequest {
  std::string where;                // begins the message of every error
  std::string pages;                // in the form of parse_page_selection
  int32_t max_pages = kMaxPages;    // more than these are an error
  std::string advice;               // ends the message of that error: how pages are selected
  bool text = false;                // the pages' texts, too
  std::string owner;                // a cached page is a miss for other owners
  std::function<bool()> cancelled;  // asked about 20 times a second; empty: never
  // The longer side of a page's image in pixels, where the page is large enough (kMaxDpi). Required.
  std::function<int64_t(const PdfPageSize& size)> longer_side;

  static constexpr int32_t kMaxPages = 100;
};

struct PdfPage {
  int32_t number = 0;                                   // from 1
  std::shared_ptr<const std::vector<std::byte>> image;  // a PNG file, the same for the same page and size
  std::string text;                                     // valid UTF-8, without form feeds and blank lines at its ends
};

// Throws Error(kMemory) that begins with `where` if the images of a request's pages have too many bytes in all.
void check_page_bytes(int64_t n_bytes, const std::string& where);

// Any thread.
class PdfReader {
 public:
  static constexpr double kMaxDpi = 300;                // small pages are not drawn larger
  static constexpr int64_t kMaxSide = 2048;             // pixels of a page's longer side
  static constexpr std::chrono::seconds kMaxTime{180};  // of all pages of a request

  // page: limits of each program that is run; their sandbox is chosen as can_read_pdfs says.
  explicit PdfReader(const ProcessLimits& page = {}) : page_limits_(page) {}

  // Pages in the order selected. Throws Error: kUnsupported (poppler-utils is not installed), kInput (no PDF, damaged,
  // encrypted with a password, pages that it does not have, beyond a limit), kMemory (more bytes of images than
  // check_page_bytes allows), kCancelled, kIo.
  std::vector<PdfPage> read(std::span<const std::byte> pdf, const PdfRequest& request);

  void clear() { known_.clear(); }  // forgets all pages
  PageCache& known() { return known_; }
  int64_t n_drawn() const;  // pages, since the start: only cache misses

 private:
  const ProcessLimits page_limits_;
  // Programs at once: the others are the inference's.
  std::counting_semaphore<> places_{kPlaces};
  static constexpr int kPlaces = 2;
  PageCache known_;
  mutable std::mutex mutex_;  // guards n_drawn_
  int64_t n_drawn_ = 0;
};

}  // namespace vlcache
