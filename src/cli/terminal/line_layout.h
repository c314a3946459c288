// Where libedit shows a line on a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace vlcache {

// The row of the cursor after this text, from 0 on: characters as wide as LC_CTYPE has them, tabs, line breaks, and the
// forms in which libedit shows characters that cannot be printed (^A, \U+200E).
//   width: columns of the terminal, at least 2.
size_t cursor_row(std::wstring_view text, size_t width);

// The same on a terminal that has wrapped its lines again at `width`, after libedit drew the whole text in rows of
// drawn_width columns. libedit writes no blanks at the end of a row: where they are, and before a wide character that
// did not fit, the terminal's line has ended.
size_t rewrapped_cursor_row(std::wstring_view text, size_t drawn_width, size_t width);

}  // namespace vlcache
