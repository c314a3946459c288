#include "io/document/page_selection.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr size_t kMaxText = 1000;  // a hundred pages, one by one, have 400 characters

// A page number at the beginning of `text`, which it is removed from; 0: there is none.
int32_t take_number(std::string_view& text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 1) return 0;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

// False: it is no range.
bool parse_range(std::string_view text, PageRange& range) {
  range.first = range.last = take_number(text);
  if (range.first == 0) return false;
  if (take(text, '-')) {
    range.last = text.empty() ? 0 : take_number(text);
    if (range.last == 0 && !text.empty()) return false;
  }
  return text.empty() && (range.last == 0 || range.last >= range.first);
}

}  // namespace

PageSelection parse_page_selection(std::string_view text, const std::string& where) {
  PageSelection selection;
  const std::string_view given = text.substr(0, 40);
  const auto fail = [&] {
    throw Error(ErrorCode::kInput, where + ": expected pages such as 3-7 or 1,4-6, found '" + std::string(given) + "'");
  };
  if (text.size() > kMaxText) fail();
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    PageRange range;
    if (!parse_range(item, range) || item.size() + 1 == text.size()) fail();  // the latter: a comma at the end
    selection.push_back(range);
    text.remove_prefix(std::min(text.size(), item.size() + 1));
  }
  return selection;
}

std::vector<int32_t> selected_pages(const PageSelection& selection, const PageCount& count, int32_t max_pages,
                                    const std::string& where, const std::string& advice) {
  const int32_t n_pages = count.n;
  const std::string has =
      std::string(count.document) + " has " + std::to_string(n_pages) + (n_pages == 1 ? " page" : " pages");
  std::vector<int32_t> pages;
  for (PageRange range : selection.empty() ? PageSelection{{1, 0}} : selection) {
    if (range.last == 0) range.last = std::max(range.first, n_pages);
    if (range.last > n_pages) {
      throw Error(ErrorCode::kInput,
                  where + ": " + has + ", and there is no page " + std::to_string(std::max(range.first, n_pages + 1)));
    }
    if (std::ssize(pages) + range.last - range.first + 1 > max_pages) {
      throw Error(ErrorCode::kInput, where + ": " + (selection.empty() ? has : "too many pages are selected") +
                                         "; expected at most " + std::to_string(max_pages) +
                                         (advice.empty() ? "" : "; " + advice));
    }
    for (int32_t page = range.first; page <= range.last; ++page) pages.push_back(page);
  }
  return pages;
}

PathAndPages split_pages(const std::string& path) {
  std::error_code error;
  const size_t mark = path.rfind('#');
  if (mark == std::string::npos || std::filesystem::exists(path, error)) return {path, ""};
  const std::string file = path.substr(0, mark);
  if (!std::filesystem::is_regular_file(file, error)) return {path, ""};
  return {file, path.substr(mark + 1)};
}

}  // namespace vlcache
