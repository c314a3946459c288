// The escapes of a string literal in a template, as jinja2 resolves them: ASCII with backslashreplace, then
// unicode-escape.
#include "io/chat/jinja/string_literal.h"

#include <unicode/uchar.h>

#include <array>
#include <cstdio>

#include "io/chat/jinja/text.h"
#include "io/chat/jinja/value.h"

namespace vlcache::jinja {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void append_checked(std::string& out, char32_t c) {
  if (c > 0x10FFFF) fail("illegal Unicode character");
  // Python keeps a lone surrogate and then cannot encode the text it ends up in.
  if (c >= 0xD800 && c < 0xE000) fail("a string literal holds a surrogate, which UTF-8 cannot");
  append_utf8(out, c);
}

void hex_escape(std::string& out, std::string_view body, size_t& pos, int n_digits) {
  char32_t value = 0;
  for (int i = 0; i < n_digits; ++i) {
    const int digit = pos < body.size() ? hex_digit(body[pos]) : -1;
    if (digit < 0) fail("truncated escape sequence in a string literal");
    value = value << 4 | static_cast<char32_t>(digit);
    ++pos;
  }
  append_checked(out, value);
}

void named_escape(std::string& out, std::string_view body, size_t& pos) {
  const size_t end = body.find('}', pos);
  if (pos >= body.size() || body[pos] != '{' || end == std::string_view::npos) fail("malformed \\N character escape");
  const std::string name(body.substr(pos + 1, end - pos - 1));
  UErrorCode status = U_ZERO_ERROR;
  UChar32 c = u_charFromName(U_UNICODE_CHAR_NAME, name.c_str(), &status);
  if (U_FAILURE(status)) {
    status = U_ZERO_ERROR;
    c = u_charFromName(U_CHAR_NAME_ALIAS, name.c_str(), &status);
  }
  if (U_FAILURE(status)) fail("unknown Unicode character name");
  append_checked(out, static_cast<char32_t>(c));
  pos = end + 1;
}

// A backslash before a character that is not ASCII: backslashreplace has turned that into an escape whose own backslash
// is now escaped, so its text stays.
void escaped_non_ascii(std::string& out, std::string_view body, size_t& pos) {
  const char32_t c = next_code_point(body, pos);
  std::array<char, 16> text;
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(text.data(), text.size(), format, static_cast<unsigned>(c));
#pragma GCC diagnostic pop
  out += text.data();
}

void octal_escape(std::string& out, std::string_view body, size_t& pos) {
  char32_t value = 0;
  for (int i = 0; i < 3 && pos < body.size() && body[pos] >= '0' && body[pos] <= '7'; ++i) {
    value = value * 8 + static_cast<char32_t>(body[pos++] - '0');
  }
  append_checked(out, value);
}

}  // namespace

std::string unescape_literal(std::string_view body) {
  std::string out;
  for (size_t pos = 0; pos < body.size();) {
    if (body[pos] != '\\') {
      out += body[pos++];
      continue;
    }
    if (++pos >= body.size()) fail("\\ at end of string");
    const char c = body[pos];
    if (static_cast<unsigned char>(c) >= 0x80) {
      escaped_non_ascii(out, body, pos);
      continue;
    }
    if (c >= '0' && c <= '7') {
      octal_escape(out, body, pos);
      continue;
    }
    ++pos;
    switch (c) {
      case '\n':
        break;
      case '\\':
      case '\'':
      case '"':
        out += c;
        break;
      case 'a':
        out += '\a';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'v':
        out += '\v';
        break;
      case 'x':
        hex_escape(out, body, pos, 2);
        break;
      case 'u':
        hex_escape(out, body, pos, 4);
        break;
      case 'U':
        hex_escape(out, body, pos, 8);
        break;
      case 'N':
        named_escape(out, body, pos);
        break;
      default:
        out += '\\';
        out += c;
    }
  }
  return out;
}

}  // namespace vlcache::jinja
