#include "cli/terminal/line_layout.h"

#include <algorithm>
#include <cwchar>
#include <cwctype>
#include <span>
#include <vector>

namespace vlcache {
namespace {

struct Cell {
  size_t n_columns;
  bool blank = false, ends_line = false;
};

// Of a text that is drawn from column 0 on, in rows of `width` columns.
std::vector<Cell> cells_of(std::wstring_view text, size_t width) {
  constexpr size_t kControl = 2, kEscaped = 7, kLongEscaped = 8;  // ^A, \U+200E, \U+1F3FB
  std::vector<Cell> cells;
  size_t column = 0;
  const auto put = [&](Cell cell) {
    cells.push_back(cell);
    column = cell.ends_line || column + cell.n_columns == width ? 0 : column + cell.n_columns;
    if (column > width) column = cell.n_columns;  // a wide character is not cut
  };
  for (const wchar_t c : text) {
    const auto code = static_cast<wint_t>(c);
    if (c == L'\n') {
      put({.n_columns = 0, .ends_line = true});
    } else if (c == L'\t') {
      do put({.n_columns = 1, .blank = true});
      while (column % 8 != 0);
    } else if (std::iswprint(code) != 0) {
      put({.n_columns = static_cast<size_t>(std::max(0, wcwidth(c))), .blank = c == L' '});
    } else {
      const size_t n = code < 0x20 || code == 0x7f ? kControl : code > 0xffff ? kLongEscaped : kEscaped;
      for (size_t i = 0; i < n; ++i) put({.n_columns = 1});
    }
  }
  return cells;
}

// The row after these cells, in rows of `width` columns. at_end: the cursor's, which stands after a full row in the
// next one; else the last cell's.
size_t row_after(std::span<const Cell> cells, size_t width, bool at_end) {
  size_t row = 0, column = 0;
  for (const Cell& cell : cells) {
    if (column + cell.n_columns > width) ++row, column = 0;
    column += cell.n_columns;
    if (cell.ends_line) ++row, column = 0;
  }
  return row + (at_end && column >= width ? 1 : 0);
}

}  // namespace

size_t cursor_row(std::wstring_view text, size_t width) { return row_after(cells_of(text, width), width, true); }

size_t rewrapped_cursor_row(std::wstring_view text, size_t drawn_width, size_t width) {
  const std::vector<Cell> cells = cells_of(text, drawn_width);
  size_t row = 0, column = 0, begin = 0;
  const auto end_line = [&](size_t end) {
    size_t n = end - begin;
    while (n > 0 && cells[begin + n - 1].blank) --n;
    row += row_after({cells.data() + begin, n}, width, false) + 1;
    begin = end;
  };
  for (size_t i = 0; i < cells.size(); ++i) {
    if (column + cells[i].n_columns > drawn_width) {
      if (column < drawn_width || cells[i - 1].blank) end_line(i);
      column = 0;
    }
    column += cells[i].n_columns;
    if (!cells[i].ends_line) continue;
    end_line(i);
    ++begin;
    column = 0;
  }
  return row + row_after({cells.data() + begin, cells.size() - begin}, width, true);
}

}  // namespace vlcache
