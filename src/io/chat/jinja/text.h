// Implements Python's str operations on UTF-8: code points, white space, case, searching, splitting, repr.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace vlcache::jinja {

std::string to_utf8(char32_t code_point);
std::u32string decode(std::string_view text);
std::string encode(std::u32string_view text);
int64_t count_code_points(std::string_view text);
// Byte offset of code point `index` (text.size() if there are fewer).
size_t byte_offset(std::string_view text, int64_t index);

bool is_space(char32_t c);
bool is_printable(char32_t c);
enum class CharClass { kAlpha, kAlnum, kDecimal, kDigit, kNumeric, kSpace, kPrintable, kAscii, kIdentifier };
// str.isalpha() and its relatives: every code point is of the class (an empty text only for printable and ascii).
bool all_of_class(std::string_view text, CharClass c);
bool is_lower(std::string_view text);
bool is_upper(std::string_view text);
bool is_title(std::string_view text);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
std::string case_fold(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
// `chars` null: white space.
std::string_view strip(std::string_view text, const std::string_view* chars, Side side);
// max_splits < 0: no limit. `separator` null: runs of white space.
std::vector<std::string_view> split(std::string_view text, const std::string_view* separator, int64_t max_splits);
std::vector<std::string_view> rsplit(std::string_view text, const std::string_view* separator, int64_t max_splits);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// count < 0: all.
std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t count);
// Number of bytes replace() would return, so that a limit can be checked before they are allocated.
size_t replaced_size(std::string_view text, std::string_view old, std::string_view with, int64_t count);
std::string repr(std::string_view text);

}  // namespace vlcache::jinja
