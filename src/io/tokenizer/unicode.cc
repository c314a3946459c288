// Character properties from ICU, corrected to the versions of the reference.
#include "io/tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/utf8.h"
#include "io/tokenizer/unicode_tables.h"

namespace vlcache {
namespace {

// The entry of a character that is newer than Unicode 14; null for an older one.
const NewCharacters* new_character(char32_t c) {
  if (c < kNewCharacters[0].first) return nullptr;
  const NewCharacters* end = kNewCharacters + kNewCharactersCount;
  const NewCharacters* row =
      std::lower_bound(kNewCharacters, end, c, [](const NewCharacters& r, char32_t x) { return r.last < x; });
  return row != end && row->first <= c ? row : nullptr;
}

const char* new_category(char32_t c) {
  const NewCharacters* row = new_character(c);
  return row == nullptr ? nullptr : row->category;
}

// Assigned in Unicode `major`.0 or before.
bool is_as_old_as(char32_t c, int major) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] != 0 && (age[0] < major || (age[0] == major && age[1] == 0));
}

bool has_category(char32_t c, uint32_t mask) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & mask) != 0; }

const icu::Normalizer2* normalizer_of(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  if (U_FAILURE(status)) throw Error(ErrorCode::kUnsupported, "ICU has no Unicode normalization data");
  return normalizer;
}

void append_normalized(const icu::Normalizer2& normalizer, std::string_view text, std::string& out) {
  if (text.empty()) return;
  UErrorCode status = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&out);
  normalizer.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, status);
  if (U_FAILURE(status))
    throw Error(ErrorCode::kMemory, "Unicode normalization failed: " + std::string(u_errorName(status)));
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  if (const char* category = new_category(c)) {
    return category[0] == 'L' || category[0] == 'M' || std::strcmp(category, "Nd") == 0 ||
           std::strcmp(category, "Nl") == 0;
  }
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_JOIN_CONTROL) ||
         has_category(c, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK);
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  if (const char* category = new_category(c)) return category[0] == 'N';
  return has_category(c, U_GC_N_MASK) || (c >= 0x11DE0 && c <= 0x11DE9) ||
         (c >= 0x16FF4 && c <= 0x16FF6);  // Unicode 17
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c > 0x20 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
  if (c == 0x166D || c == 0x111C9) return true;  // were punctuation in Unicode 8
  return has_category(c, U_GC_P_MASK) && is_as_old_as(c, 8);
}

bool is_combining_mark(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // were marks in Unicode 9
  if (c == 0x111C9) return false;               // was not
  return has_category(c, U_GC_M_MASK) && is_as_old_as(c, 9);
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {
    out += "i\xCC\x87";
    return;
  }
  for (int i = 0; i < kNewLowercaseCount; ++i) {
    if (c >= kNewLowercase[i].first && c <= kNewLowercase[i].last) {
      append_utf8(out, c + static_cast<char32_t>(kNewLowercase[i].delta));
      return;
    }
  }
  append_utf8(out, static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
}

std::string normalize_text(NormalForm form, std::string_view text) {
  const icu::Normalizer2& normalizer = *normalizer_of(form);
  std::string out;
  out.reserve(text.size());
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t here = i;
    const char32_t c = next_code_point(text, i);
    // U+11930 and U+11935 compose to U+11938 since Unicode 13.
    if (c < 0x7FD || is_as_old_as(c, 9)) continue;
    append_normalized(normalizer, text.substr(start, here - start), out);
    out.append(text.substr(here, i - here));
    start = i;
  }
  append_normalized(normalizer, text.substr(start), out);
  return out;
}

char32_t stand_in_character(char32_t c) {
  const NewCharacters* row = new_character(c);
  return row == nullptr ? 0 : row->stand_in;
}

}  // namespace vlcache
