#include "io/document/pdf_info.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace vlcache {
namespace {

constexpr size_t kMaxSizes = 1 << 16;  // more than are asked for

void skip_blanks(std::string_view& text) { text.remove_prefix(std::min(text.find_first_not_of(' '), text.size())); }

bool take(std::string_view& text, std::string_view word) {
  skip_blanks(text);
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

template <typename Number>
bool take_number(std::string_view& text, Number& number) {
  skip_blanks(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool is_length(double points) { return std::isfinite(points) && points > 0; }

// "Page    3 size:  595.276 x 841.89 pts (A4)", then "Page    3 rot:   90"
void read_size(std::string_view line, PdfInfo& info) {
  int32_t page = 0, rotation = 0;
  PdfPageSize size;
  if (!take(line, "Page") || !take_number(line, page)) return;
  if (const auto known = info.sizes.find(page); known != info.sizes.end() && take(line, "rot:")) {
    if (take_number(line, rotation) && rotation % 180 != 0) std::swap(known->second.width, known->second.height);
    return;
  }
  if (!take(line, "size:")) return;
  if (!take_number(line, size.width) || !take(line, "x") || !take_number(line, size.height)) return;
  if (page < 1 || !is_length(size.width) || !is_length(size.height)) return;
  if (info.sizes.size() < kMaxSizes) info.sizes[page] = size;
}

}  // namespace

PdfInfo parse_pdf_info(std::string_view output) {
  PdfInfo info;
  while (!output.empty()) {
    std::string_view line = output.substr(0, output.find('\n'));
    output.remove_prefix(std::min(output.size(), line.size() + 1));
    read_size(line, info);
    int32_t n_pages = 0;
    if (line.starts_with("Pages:") && take(line, "Pages:") && take_number(line, n_pages)) {
      info.n_pages = std::max(0, n_pages);
    }
  }
  return info;
}

}  // namespace vlcache
