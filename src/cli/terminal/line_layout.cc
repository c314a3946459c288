#include "cli/terminal/line_layout.h"

#include <cwchar>
#include <cwctype>

namespace vlcache {

size_t cursor_row(std::wstring_view text, size_t width) {
  size_t row = 0, column = 0;
  const auto next_row = [&] {
    ++row;
    column = 0;
  };
  const auto put = [&](size_t n_columns) {
    if (column + n_columns > width) next_row();  // a wide character is not cut
    column += n_columns;
    if (column >= width) next_row();
  };
  const auto put_ascii = [&](size_t n) {
    for (size_t i = 0; i < n; ++i) put(1);
  };
  constexpr size_t kControl = 2, kEscaped = 7, kLongEscaped = 8;  // ^A, \U+200E, \U+1F3FB
  for (const wchar_t c : text) {
    const auto code = static_cast<wint_t>(c);
    if (c == L'\n') {
      next_row();
    } else if (c == L'\t') {
      do put(1);
      while (column % 8 != 0);
    } else if (std::iswprint(code) != 0) {
      const int n_columns = wcwidth(c);
      put(n_columns > 0 ? static_cast<size_t>(n_columns) : 0);
    } else {
      put_ascii(code < 0x20 || code == 0x7f ? kControl : code > 0xffff ? kLongEscaped : kEscaped);
    }
  }
  return row;
}

}  // namespace vlcache
