// Python's str operations on UTF-8. Character properties and case mappings come from ICU.
#include "io/chat/jinja/text.h"

#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace vlcache::jinja {
namespace {

char32_t previous_code_point(std::string_view text, size_t& end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  size_t pos = end;
  return next_code_point(text, pos);
}

bool is_cased(char32_t c) {
  const auto u = static_cast<UChar32>(c);
  return u_hasBinaryProperty(u, UCHAR_LOWERCASE) || u_hasBinaryProperty(u, UCHAR_UPPERCASE) || u_istitle(u);
}

bool is_digit(char32_t c) {
  const auto type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}

bool is_numeric(char32_t c) {
  // CJK ideographs that stand for numbers have a numeric type as well.
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}

bool is_decimal(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_DECIMAL_DIGIT_NUMBER; }

bool is_alpha(char32_t c) {
  const uint32_t letters = U_GC_L_MASK;
  return (U_MASK(u_charType(static_cast<UChar32>(c))) & letters) != 0;
}

bool is_of_class(char32_t c, CharClass which) {
  switch (which) {
    case CharClass::kAlpha:
      return is_alpha(c);
    case CharClass::kAlnum:
      return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
    case CharClass::kDecimal:
      return is_decimal(c);
    case CharClass::kDigit:
      return is_digit(c);
    case CharClass::kNumeric:
      return is_numeric(c);
    case CharClass::kSpace:
      return is_space(c);
    case CharClass::kPrintable:
      return is_printable(c);
    case CharClass::kAscii:
      return c < 0x80;
    case CharClass::kIdentifier:
      return c == '_' || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_CONTINUE);
  }
  return false;
}

template <class Map>
std::string map_case(std::string_view text, Map&& map) {
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  UErrorCode status = U_ZERO_ERROR;
  map(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, status);
  CHECK(U_SUCCESS(status));
  return out;
}

// The title-case form of one code point (may be several: U+00DF becomes "Ss").
std::string title_of(std::string_view one) {
  return map_case(one, [](icu::StringPiece in, icu::ByteSink& sink, UErrorCode& status) {
    icu::CaseMap::utf8ToTitle("", U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT, nullptr, in, sink,
                              nullptr, status);
  });
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::vector<std::string_view> split_space(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  std::string_view rest = strip(text, nullptr, Side::kLeft);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(rest);
      return parts;
    }
    size_t pos = 0;
    size_t end = 0;
    while (end < rest.size() && !is_space(next_code_point(rest, pos))) end = pos;
    parts.push_back(rest.substr(0, end));
    rest = strip(rest.substr(end), nullptr, Side::kLeft);
  }
  return parts;
}

std::vector<std::string_view> rsplit_space(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  std::string_view rest = strip(text, nullptr, Side::kRight);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(rest);
      break;
    }
    size_t end = rest.size();
    size_t begin = end;
    while (end > 0 && !is_space(previous_code_point(rest, end))) begin = end;
    parts.push_back(rest.substr(begin));
    rest = strip(rest.substr(0, begin), nullptr, Side::kRight);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::string to_utf8(char32_t code_point) {
  std::string out;
  append_utf8(out, code_point);
  return out;
}

std::u32string decode(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) out += next_code_point(text, pos);
  return out;
}

std::string encode(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_utf8(out, c);
  return out;
}

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

size_t byte_offset(std::string_view text, int64_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) next_code_point(text, pos);
  return pos;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  const uint32_t hidden = U_GC_C_MASK | U_GC_Z_MASK;
  return (U_MASK(u_charType(static_cast<UChar32>(c))) & hidden) == 0;
}

bool all_of_class(std::string_view text, CharClass c) {
  if (text.empty()) return c == CharClass::kPrintable || c == CharClass::kAscii;
  for (size_t pos = 0; pos < text.size();) {
    const bool first = pos == 0;
    const char32_t code_point = next_code_point(text, pos);
    if (!is_of_class(code_point, c)) return false;
    if (first && c == CharClass::kIdentifier && code_point != '_' &&
        !u_hasBinaryProperty(static_cast<UChar32>(code_point), UCHAR_XID_START)) {
      return false;
    }
  }
  return true;
}

bool is_lower(std::string_view text) {
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<UChar32>(next_code_point(text, pos));
    if (u_hasBinaryProperty(c, UCHAR_UPPERCASE) || u_istitle(c)) return false;
    found = found || u_hasBinaryProperty(c, UCHAR_LOWERCASE);
  }
  return found;
}

bool is_upper(std::string_view text) {
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<UChar32>(next_code_point(text, pos));
    if (u_hasBinaryProperty(c, UCHAR_LOWERCASE) || u_istitle(c)) return false;
    found = found || u_hasBinaryProperty(c, UCHAR_UPPERCASE);
  }
  return found;
}

bool is_title(std::string_view text) {
  bool found = false;
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<UChar32>(next_code_point(text, pos));
    if (u_hasBinaryProperty(c, UCHAR_UPPERCASE) || u_istitle(c)) {
      if (after_cased) return false;
      found = after_cased = true;
    } else if (u_hasBinaryProperty(c, UCHAR_LOWERCASE)) {
      if (!after_cased) return false;
      found = after_cased = true;
    } else {
      after_cased = false;
    }
  }
  return found;
}

std::string to_upper(std::string_view text) {
  return map_case(text, [](icu::StringPiece in, icu::ByteSink& sink, UErrorCode& status) {
    icu::CaseMap::utf8ToUpper("", 0, in, sink, nullptr, status);
  });
}

std::string to_lower(std::string_view text) {
  return map_case(text, [](icu::StringPiece in, icu::ByteSink& sink, UErrorCode& status) {
    icu::CaseMap::utf8ToLower("", 0, in, sink, nullptr, status);
  });
}

std::string case_fold(std::string_view text) {
  return map_case(text, [](icu::StringPiece in, icu::ByteSink& sink, UErrorCode& status) {
    icu::CaseMap::utf8Fold(0, in, sink, nullptr, status);
  });
}

std::string to_title(std::string_view text) {
  // The whole text is lowered at once, so that a final sigma is seen in its word; pieces are then taken by code point.
  std::string out;
  bool after_cased = false;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    size_t first = 0;
    next_code_point(word, first);
    out += title_of(std::string_view(word).substr(0, first));
    out += to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    if (is_cased(c)) {
      word += text.substr(begin, pos - begin);
      after_cased = true;
    } else {
      if (after_cased) flush();
      out += text.substr(begin, pos - begin);
      after_cased = false;
    }
  }
  flush();
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t first = 0;
  next_code_point(text, first);
  return title_of(text.substr(0, first)) + to_lower(text.substr(first));
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const auto c = static_cast<UChar32>(next_code_point(text, pos));
    const std::string_view one = text.substr(begin, pos - begin);
    if (u_hasBinaryProperty(c, UCHAR_UPPERCASE)) {
      out += to_lower(one);
    } else if (u_hasBinaryProperty(c, UCHAR_LOWERCASE)) {
      out += to_upper(one);
    } else {
      out += one;
    }
  }
  return out;
}

std::string_view strip(std::string_view text, const std::string_view* chars, Side side) {
  const std::u32string set = chars == nullptr ? std::u32string() : decode(*chars);
  const auto drop = [&](char32_t c) { return chars == nullptr ? is_space(c) : set.find(c) != std::u32string::npos; };
  size_t begin = 0;
  size_t end = text.size();
  if (side != Side::kRight) {
    for (size_t pos = 0; begin < end; begin = pos) {
      if (!drop(next_code_point(text, pos))) break;
    }
  }
  if (side != Side::kLeft) {
    for (size_t pos = end; end > begin; end = pos) {
      if (!drop(previous_code_point(text, pos))) break;
    }
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> split(std::string_view text, const std::string_view* separator, int64_t max_splits) {
  if (separator == nullptr) return split_space(text, max_splits);
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = text.find(*separator, begin);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator->size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view text, const std::string_view* separator, int64_t max_splits) {
  if (separator == nullptr) return rsplit_space(text, max_splits);
  std::vector<std::string_view> parts;
  std::string_view rest = text;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = rest.rfind(*separator);
    if (at == std::string_view::npos) break;
    parts.push_back(rest.substr(at + separator->size()));
    rest = rest.substr(0, at);
  }
  parts.push_back(rest);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = next_code_point(text, pos);
    if (!is_line_end(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

namespace {

// Calls on_match(byte offset) for each place replace() changes.
void for_each_match(std::string_view text, std::string_view old, int64_t count,
                    const std::function<void(size_t)>& on_match) {
  if (old.empty()) {
    size_t pos = 0;
    for (int64_t n = 0; count < 0 || n < count; ++n) {
      on_match(pos);
      if (pos >= text.size()) return;
      next_code_point(text, pos);
    }
    return;
  }
  size_t at = text.find(old);
  for (int64_t n = 0; at != std::string_view::npos && (count < 0 || n < count); ++n) {
    on_match(at);
    at = text.find(old, at + old.size());
  }
}

}  // namespace

std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t count) {
  std::string out;
  size_t done = 0;
  for_each_match(text, old, count, [&](size_t at) {
    out += text.substr(done, at - done);
    out += with;
    done = at + old.size();
  });
  out += text.substr(done);
  return out;
}

size_t replaced_size(std::string_view text, std::string_view old, std::string_view with, int64_t count) {
  size_t n_matches = 0;
  for_each_match(text, old, count, [&](size_t) { ++n_matches; });
  return text.size() - n_matches * old.size() + n_matches * with.size();
}

std::string repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  const auto hex = [&](const char* prefix, char32_t c, int digits) {
    out += prefix;
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[c >> shift & 0xF];
  };
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else if (c < 0x100) {
      hex("\\x", c, 2);
    } else if (c < 0x10000) {
      hex("\\u", c, 4);
    } else {
      hex("\\U", c, 8);
    }
  }
  out += quote;
  return out;
}

}  // namespace vlcache::jinja
