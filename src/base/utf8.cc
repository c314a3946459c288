// Decoding by the table of well-formed byte sequences (Unicode 15, table 3-7).
#include "base/utf8.h"

#include <algorithm>

namespace vlcache {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Scan { kCharacter, kInvalid, kIncomplete };

// Scans the character that starts at text[i]: its length, or that of the maximal subpart that is invalid or cut.
Scan scan_character(std::string_view text, size_t i, size_t& length) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = byte(i);
  length = 1;
  if (lead < 0x80) return Scan::kCharacter;
  if (lead < 0xC2 || lead > 0xF4) return Scan::kInvalid;
  const size_t want = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;   // overlong
  if (lead == 0xED) high = 0x9F;  // surrogates
  if (lead == 0xF0) low = 0x90;   // overlong
  if (lead == 0xF4) high = 0x8F;  // beyond U+10FFFF
  for (; length < want; ++length) {
    if (i + length == text.size()) return Scan::kIncomplete;
    if (byte(i + length) < low || byte(i + length) > high) return Scan::kInvalid;
    low = 0x80;
    high = 0xBF;
  }
  return Scan::kCharacter;
}

}  // namespace

char32_t next_code_point(std::string_view text, size_t& i) {
  const auto byte = [&](size_t k) -> char32_t { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0x80; };
  const auto tail = [&](size_t k) { return byte(i + k) & 0x3F; };
  const char32_t lead = byte(i);
  if (lead < 0x80) {
    ++i;
    return lead;
  }
  char32_t c = 0;
  size_t n = 2;
  if (lead < 0xE0) {
    c = (lead & 0x1F) << 6 | tail(1);
  } else if (lead < 0xF0) {
    n = 3;
    c = (lead & 0x0F) << 12 | tail(1) << 6 | tail(2);
  } else {
    n = 4;
    c = (lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
  }
  i = std::min(i + n, text.size());
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  size_t length = 0;
  for (size_t i = 0; i < text.size(); i += length) {
    if (scan_character(text, i, length) != Scan::kCharacter) return false;
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  Utf8Assembler assembler;
  assembler.push(text, out);
  assembler.finish(out);
  return out;
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_ + std::string(bytes);
    bytes = joined;
    pending_.clear();
  }
  size_t length = 0;
  for (size_t i = 0; i < bytes.size(); i += length) {
    switch (scan_character(bytes, i, length)) {
      case Scan::kCharacter:
        out.append(bytes.substr(i, length));
        break;
      case Scan::kInvalid:
        out.append(kReplacement);
        break;
      case Scan::kIncomplete:
        pending_ = bytes.substr(i);
        return;
    }
  }
}

void Utf8Assembler::finish(std::string& out) {
  if (!pending_.empty()) out.append(kReplacement);  // a cut character is one maximal subpart
  pending_.clear();
}

}  // namespace vlcache
