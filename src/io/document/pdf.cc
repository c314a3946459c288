#include "io/document/pdf.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/utf8.h"
#include "io/document/page_selection.h"
#include "io/image/other_formats.h"

namespace vlcache {
namespace {

constexpr size_t kHeaderBytes = 1024;
constexpr int64_t kMaxTextBytes = int64_t{1} << 20;  // of a page
constexpr size_t kMaxReason = 160;

constexpr std::chrono::seconds kPageTime{10};  // it takes 0.1 s on an idle machine

// A page with a word in a font that it does not bring.
constexpr std::string_view kProbePage =
    "%PDF-1.4\n"
    "1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    "2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    "3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 60 20]/Contents 4 0 R\n"
    "/Resources<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>endobj\n"
    "4 0 obj<</Length 28>>stream\n"
    "BT/F 9 Tf 5 5 Td(Page)Tj ET \n"
    "endstream\n"
    "endobj\n"
    "xref\n"
    "0 5\n"
    "0000000000 65535 f \n"
    "0000000009 00000 n \n"
    "0000000052 00000 n \n"
    "0000000101 00000 n \n"
    "0000000250 00000 n \n"
    "trailer<</Size 5/Root 1 0 R>>\n"
    "startxref\n"
    "324\n"
    "%%EOF\n";

// Of poppler's programs: chosen once, by drawing that page.
const Sandbox& poppler_sandbox() {
  static const Sandbox sandbox = choose_sandbox_aloud("the programs that read PDFs", [](const Sandbox& tried) {
    const std::optional<std::filesystem::path> program = find_program("pdftocairo");
    if (!program) return ProcessOutcome{.code = kNotStarted};
    const MemoryFile page(std::as_bytes(std::span(kProbePage)));
    return run_limited(*program, {"-png", "-singlefile", kHelperInput, "-"}, page,
                       {.time = kPageTime, .sandbox = tried});
  });
  return sandbox;
}

// What a program said last, on one line of printable ASCII: it may quote the document.
std::string last_words(std::string_view errors) {
  while (!errors.empty() && (errors.back() == '\n' || errors.back() == ' ')) errors.remove_suffix(1);
  if (const size_t line = errors.rfind('\n'); line != std::string_view::npos) errors.remove_prefix(line + 1);
  std::string words;
  for (const char c : errors.substr(0, kMaxReason)) words += c >= ' ' && c <= '~' ? c : '?';
  return words;
}

// Blank lines at both ends removed, and what separates pages.
std::string trimmed_text(const std::vector<std::byte>& output) {
  std::string text = to_valid_utf8({reinterpret_cast<const char*>(output.data()), output.size()});
  std::erase_if(text, [](char c) { return c == '\f' || c == '\r' || c == '\0'; });
  const size_t end = text.find_last_not_of(" \n") + 1;  // npos + 1 is 0
  if (end == 0) return "";
  const size_t begin = text.find_first_not_of('\n');
  return text.substr(begin, end - begin);
}

// The programs that read one PDF.
class Programs {
 public:
  Programs(std::span<const std::byte> pdf, const PdfRequest& request, const ProcessLimits& limits,
           std::counting_semaphore<>& places)
      : input_(pdf), request_(request), limits_(limits), places_(places) {}

  PdfInfo info(int32_t first, int32_t last) {
    const ProcessOutcome outcome =
        run("pdfinfo", {"-f", std::to_string(first), "-l", std::to_string(last)}, kMaxTextBytes);
    if (!outcome.good()) fail(outcome, "the PDF");
    return parse_pdf_info({reinterpret_cast<const char*>(outcome.output.data()), outcome.output.size()});
  }

  // A PNG file whose longer side has so many pixels.
  std::vector<std::byte> draw(int32_t page, const PdfPageSize& size, int64_t side) {
    const auto pixels = [&](double points) {
      const auto n = static_cast<int64_t>(std::lround(static_cast<double>(side) * points / size.longer()));
      return std::to_string(std::max<int64_t>(1, n));
    };
    const std::string number = std::to_string(page), width = pixels(size.width), height = pixels(size.height);
    // -W and -H: without them a side is a pixel longer where the scale is not exact.
    ProcessOutcome outcome = run("pdftocairo",
                                 {"-png", "-singlefile", "-cropbox", "-f", number, "-l", number, "-scale-to-x", width,
                                  "-scale-to-y", height, "-x", "0", "-y", "0", "-W", width, "-H", height},
                                 limits_.output_bytes, "-");
    if (!outcome.good() || outcome.output.empty()) fail(outcome, "page " + number);
    return std::move(outcome.output);
  }

  std::string text(int32_t page) {
    const std::string number = std::to_string(page);
    const ProcessOutcome outcome = run("pdftotext", {"-enc", "UTF-8", "-f", number, "-l", number}, kMaxTextBytes, "-");
    if (!outcome.good()) fail(outcome, "the text of page " + number);
    return trimmed_text(outcome.output);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, ErrorCode code = ErrorCode::kInput) const {
    throw Error(code, request_.where + ": " + what);
  }

  ProcessOutcome run(const char* name, std::vector<std::string> arguments, int64_t output_bytes,
                     const char* output = nullptr) {
    const std::optional<std::filesystem::path> program = find_program(name);
    if (!program) {
      refuse(
          std::string("PDFs need ") + name + ", which is not installed here; it is in Debian's package poppler-utils",
          ErrorCode::kUnsupported);
    }
    arguments.emplace_back(kHelperInput);
    if (output != nullptr) arguments.emplace_back(output);
    ProcessLimits limits = limits_;
    limits.sandbox = poppler_sandbox();
    while (!places_.try_acquire_for(std::chrono::milliseconds(50))) check_goes_on();
    limits.output_bytes = output_bytes;
    limits.time = std::min(limits.time, std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()));
    limits.time = std::max(limits.time, std::chrono::milliseconds(1));
    std::optional<ProcessOutcome> outcome;
    try {
      outcome = run_limited(*program, arguments, input_, limits, {.cancelled = request_.cancelled, .take = {}});
    } catch (...) {
      places_.release();
      throw;
    }
    places_.release();
    check_goes_on();
    return *std::move(outcome);
  }

  void check_goes_on() const {
    if (request_.cancelled && request_.cancelled()) refuse("cancelled while the PDF was read", ErrorCode::kCancelled);
    if (Clock::now() < deadline_) return;
    refuse(format("its pages took longer than %lld s to draw; select fewer",
                  static_cast<long long>(PdfReader::kMaxTime.count())));
  }

  // Says why a program failed; `part`: what it was to read.
  [[noreturn]] void fail(const ProcessOutcome& outcome, const std::string& part) const {
    using End = ProcessOutcome::End;
    if (outcome.errors.find("Incorrect password") != std::string::npos) {
      refuse(
          "the PDF is encrypted and needs a password; remove the password first (qpdf --decrypt --password=... IN "
          "OUT)");
    }
    if (outcome.errors.find("last page (0)") != std::string::npos) refuse("the PDF has no pages");
    if (outcome.end == End::kLate) {
      refuse(part + format(" took longer than %.0f s to read", static_cast<double>(limits_.time.count()) / 1000));
    }
    if (outcome.end == End::kTooMuch) refuse(part + " is larger than the limit is for a page", ErrorCode::kMemory);
    const bool memory = outcome.end == End::kSignal || outcome.errors.find("emory") != std::string::npos;
    const std::string words = last_words(outcome.errors);
    refuse(part + " cannot be read: it is damaged" +
           (memory
                ? format(", or needs more than %lld MiB of memory", static_cast<long long>(limits_.memory_bytes >> 20))
                : "") +
           (words.empty() ? "" : " (" + words + ")"));
  }

  const MemoryFile input_;
  const PdfRequest& request_;
  const ProcessLimits& limits_;
  std::counting_semaphore<>& places_;
  const Clock::time_point deadline_ = Clock::now() + PdfReader::kMaxTime;
};

// Sizes of pages that `info` has none of, one call for each run of consecutive pages.
void add_sizes(Programs& programs, std::vector<int32_t> pages, PdfInfo& info) {
  std::ranges::sort(pages);
  std::erase_if(pages, [&](int32_t page) { return info.sizes.contains(page); });
  for (size_t i = 0; i < pages.size();) {
    size_t end = i + 1;
    while (end < pages.size() && pages[end] <= pages[end - 1] + 1) ++end;
    info.sizes.merge(programs.info(pages[i], pages[end - 1]).sizes);
    i = end;
  }
}

// Pixels of the longer side.
int64_t side_of(const PdfPageSize& size, const PdfRequest& request) {
  const auto most = static_cast<int64_t>(std::min(std::ceil(size.longer() * PdfReader::kMaxDpi / 72), 1e6));
  return std::clamp<int64_t>(std::min(request.longer_side(size), most), 1, PdfReader::kMaxSide);
}

}  // namespace

bool is_pdf(std::span<const std::byte> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kHeaderBytes));
  return head.find("%PDF-") != std::string_view::npos;
}

void check_page_bytes(int64_t n_bytes, const std::string& where) {
  constexpr int64_t kMost = int64_t{256} << 20;
  if (n_bytes <= kMost) return;
  throw Error(ErrorCode::kMemory, where + ": the images of its pages have more than " + std::to_string(kMost >> 20) +
                                      " MiB; select fewer pages");
}

bool can_read_pdfs() {
  poppler_sandbox();
  return find_program("pdftocairo").has_value();
}

std::vector<PdfPage> PdfReader::read(std::span<const std::byte> pdf, const PdfRequest& request) {
  const PageSelection selection = parse_page_selection(request.pages, request.where);
  if (!is_pdf(pdf)) throw Error(ErrorCode::kInput, request.where + ": expected a PDF, found " + name_other_format(pdf));
  Sha256 hash;
  hash.add(pdf);
  const Sha256Digest file = hash.finish();
  Programs programs(pdf, request, page_limits_, places_);
  PdfInfo info = programs.info(1, PdfRequest::kMaxPages);
  if (info.n_pages == 0) throw Error(ErrorCode::kInput, request.where + ": the PDF has no pages");
  const std::vector<int32_t> numbers =
      selected_pages(selection, {.n = info.n_pages}, request.max_pages, request.where, request.advice);
  add_sizes(programs, numbers, info);
  int64_t n_bytes = 0;
  std::vector<PdfPage> pages;
  for (const int32_t number : numbers) {
    const auto size = info.sizes.find(number);
    if (size == info.sizes.end()) {
      throw Error(ErrorCode::kInput, request.where + ": page " + std::to_string(number) + " has no usable size");
    }
    PdfPage& page = pages.emplace_back(PdfPage{.number = number, .image = nullptr, .text = ""});
    const int64_t side = side_of(size->second, request);
    const Sha256Digest key = PageCache::key_of(request.owner, file, number, side);
    page.image = known_.find(key);
    if (page.image == nullptr) {
      page.image = std::make_shared<const std::vector<std::byte>>(programs.draw(number, size->second, side));
      known_.remember(key, page.image);
      const std::lock_guard lock(mutex_);
      ++n_drawn_;
    }
    n_bytes += std::ssize(*page.image);
    check_page_bytes(n_bytes, request.where);
    if (!request.text) continue;
    const Sha256Digest text_key = PageCache::key_of(request.owner, file, number, kPageText);
    PageCache::Bytes text = known_.find(text_key);
    if (text == nullptr) {
      const std::string found = programs.text(number);
      const auto bytes = std::as_bytes(std::span(found));
      text = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
      known_.remember(text_key, text);
    }
    page.text.assign(reinterpret_cast<const char*>(text->data()), text->size());
  }
  return pages;
}

int64_t PdfReader::n_drawn() const {
  const std::lock_guard lock(mutex_);
  return n_drawn_;
}

}  // namespace vlcache
