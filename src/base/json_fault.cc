#include "base/json_fault.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

#include "base/error.h"
#include "base/utf8.h"

namespace vlcache {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

char lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_word(char c) {
  return ('a' <= lower(c) && lower(c) <= 'z') || ('0' <= c && c <= '9') || c == '_' || c == '-' || c == '+' || c == '.';
}

// Whether a key or a header may be part of text[begin, end): its name stands there, or a little before.
bool may_hold_key(std::string_view text, size_t begin, size_t end) {
  constexpr size_t kBefore = 256;
  constexpr std::array<std::string_view, 12> kNames{"authorization", "bearer ", "api-key", "api_key",
                                                    "apikey",        "cookie",  "secret",  "passw",
                                                    "token\"",       "token'",  "token=",  "token:"};
  const size_t from = begin - std::min(begin, kBefore);
  std::string near(text.substr(from, end - from));
  std::ranges::transform(near, near.begin(), lower);
  if (std::ranges::any_of(kNames, [&](std::string_view name) { return near.find(name) != near.npos; })) return true;
  const size_t key = near.find("sk-");
  return key != near.npos && (key == 0 || !is_word(near[key - 1]));
}

// Control characters, also the ones that change the direction of a text.
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

std::string escaped(std::string_view text) {
  std::string out;
  char code[8];
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    const std::string_view character = text.substr(i, length);
    if (character.size() < length || !is_valid_utf8(character)) {
      std::snprintf(code, sizeof code, "\\x%02x", first);
      out += code;
      ++i;
      continue;
    }
    const char32_t c = next_code_point(text, i);
    if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_control(c)) {
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += character;
    }
  }
  return out;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Names another form that the whole text has; "": nothing known.
std::string other_form(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 1u; };
  const bool marked = (at(0) == 0xFF && at(1) == 0xFE) || (at(0) == 0xFE && at(1) == 0xFF);
  if (marked || at(0) == 0 || at(1) == 0) {
    const bool four_bytes = at(0) == 0 ? at(1) == 0 : at(2) == 0 && at(3) == 0;
    return four_bytes ? "it is UTF-32; write UTF-8" : "it is UTF-16; write UTF-8";
  }
  if (at(0) == 0x1F && at(1) == 0x8B) return "it is compressed by gzip, which the header Content-Encoding must say";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return "it is empty";
  text.remove_prefix(first);
  if (text.starts_with("--")) return "it is a multipart form, expected JSON";
  if (text.starts_with('<')) return "it is HTML or XML, expected JSON";
  const auto of_name = [](char c) { return is_word(c) || c == '%' || c == '[' || c == ']'; };
  const size_t name = static_cast<size_t>(std::ranges::find_if_not(text, of_name) - text.begin());
  if (name > 0 && text[0] != '[' && name < text.size() && text[name] == '=')
    return "it is a form (a=b&c=d), expected JSON";
  return "";
}

// The word around text[at].
std::string_view word_at(std::string_view text, size_t at) {
  size_t begin = std::min(at, text.size()), end = begin;
  while (begin > 0 && is_word(text[begin - 1]) && end - begin < 20) --begin;
  while (end < text.size() && is_word(text[end]) && end - begin < 20) ++end;
  return text.substr(begin, end - begin);
}

// Of a character at which no value, name or sign begins.
std::string wrong_literal(std::string_view text, size_t at, bool in_name) {
  const std::string word(word_at(text, at));
  std::string small = word;
  std::ranges::transform(small, small.begin(), lower);
  std::string_view sign = small;
  sign.remove_prefix(sign.starts_with('-') || sign.starts_with('+') ? 1 : 0);
  if (sign == "nan" || sign == "infinity" || sign == "inf") return word + " is not a JSON number";
  if (word == "True" || word == "False" || word == "None") return word + " is Python's; JSON has true, false and null";
  if (word == "undefined") return "undefined is JavaScript's; JSON has null";
  const char c = at < text.size() ? text[at] : '\0';
  if (c == '\'') return "single quotes; JSON has double ones";
  if (c == '/' || c == '#') return "a comment; JSON has none";
  if (in_name) return "a name without double quotes";
  return word.empty() ? "an unexpected character" : "a word that is neither a number nor true, false or null";
}

std::string control_in_string(char c) {
  switch (c) {
    case '\n':
      return "a raw line feed in a string; write \\n";
    case '\r':
      return "a raw carriage return in a string; write \\r";
    case '\t':
      return "a raw tab in a string; write \\t";
    default:
      return "a raw control character in a string; write it as \\u and four digits";
  }
}

bool follows_comma(std::string_view text, size_t at) {
  const size_t before = text.substr(0, std::min(at, text.size())).find_last_not_of(kSpace);
  return before != text.npos && text[before] == ',';
}

// In our words. `reason` names what the parser has found; its end, which quotes the text, is not read.
std::string fault_at(std::string_view text, size_t at, std::string_view reason) {
  reason = reason.substr(0, reason.find("; last read"));
  const auto says = [&](std::string_view words) { return reason.find(words) != reason.npos; };
  const char c = at < text.size() ? text[at] : '\0';
  if (says("missing closing quote")) return "the text ends within a string";
  if (says("unexpected end of input")) return "the text ends too early";
  if (says("control character")) return control_in_string(c);
  if (says("ill-formed UTF-8")) return "bytes that are not UTF-8";
  if (says("forbidden character after backslash")) return "an unknown escape; write \\\\ for a backslash";
  if (says("followed by 4 hex digits")) return "\\u without four hexadecimal digits";
  if (says("expected end of input")) return "more text after the end of the JSON value";
  if ((c == '}' || c == ']') && says("unexpected") && follows_comma(text, at))
    return std::string("a comma before ") + c;
  const bool in_list = says("expected '}'") || says("expected ']'");
  if (in_list && (says("literal") || c == '[' || c == '{')) return "a comma is missing";
  if (says("invalid BOM")) return "a damaged byte order mark";
  const bool after_value = says("parsing object -") || says("parsing array -");
  if (after_value && says("invalid literal") && !word_at(text, at).empty()) {
    return "a comma is missing, or a quote in a string lacks its \\";
  }
  if (says("invalid number") || says("invalid literal")) {
    const std::string fault = wrong_literal(text, at, says("parsing object key"));
    return says("invalid number") && fault.find("is not a JSON") == fault.npos ? "an incomplete number" : fault;
  }
  const size_t unexpected = reason.find("unexpected ");
  return unexpected == reason.npos ? "it cannot be read" : std::string(reason.substr(unexpected));
}

}  // namespace

std::string shown_near(std::string_view text, size_t at) {
  constexpr size_t kBefore = 10, kAfter = 10;
  at = std::min(at, text.size());
  size_t begin = at - std::min(at, kBefore), end = std::min(at + kAfter, text.size());
  while (begin > 0 && begin + 4 > at - std::min(at, kBefore) && is_continuation(text[begin])) --begin;
  for (size_t n = 0; n < 3 && end < text.size() && is_continuation(text[end]); ++n) ++end;
  if (begin == end) return "";
  if (may_hold_key(text, begin, end)) return "; the text there may hold a key and is not shown";
  return " (near '" + std::string(begin > 0 ? "..." : "") + escaped(text.substr(begin, end - begin)) +
         (end < text.size() ? "..." : "") + "')";
}

void throw_json_fault(std::string_view text, std::string_view where, std::optional<size_t> byte,
                      std::string_view reason) {
  const std::string beginning = std::string(where) + ": not valid JSON";
  if (!byte) {  // "... number overflow parsing '1e999'"
    const size_t number = reason.find('\'');
    const std::string found(number == reason.npos ? "" : reason.substr(number, 24));
    throw Error(ErrorCode::kInput, beginning + ": a number beyond 1.8e308" + (found.empty() ? "" : ", " + found));
  }
  const size_t at = *byte == 0 ? 0 : *byte - 1;
  std::string fault = other_form(text);
  const bool is_text = fault.empty() || fault.ends_with("expected JSON");
  if (fault.empty()) fault = fault_at(text, at, reason);
  throw Error(ErrorCode::kInput,
              beginning + " at byte " + std::to_string(*byte) + ": " + fault + (is_text ? shown_near(text, at) : ""));
}

}  // namespace vlcache
