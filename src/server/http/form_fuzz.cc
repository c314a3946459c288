// Fuzzes forms: the first line is the Content-Type, the rest the body. What a form has is found again when the parts
// are written as a form once more.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "base/utf8.h"
#include "server/http/form.h"

namespace vlcache {
namespace {

std::string quoted_name(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

void check_again(const std::vector<FormPart>& parts, std::string_view all) {
  const std::string boundary = "a boundary that no part of this form has, 8b1f6d0c";
  std::string body;
  if (all.find(boundary) != all.npos) return;
  for (const FormPart& part : parts) {
    body += "--" + boundary + "\r\nContent-Disposition: form-data; name=" + quoted_name(part.name) + "\r\n\r\n";
    body += std::string(part.data) + "\r\n";
  }
  body += "--" + boundary + "--";
  const std::vector<FormPart> again = parse_form("multipart/form-data; boundary=\"" + boundary + "\"", body);
  if (again.size() != parts.size()) std::abort();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (again[i].name != parts[i].name || again[i].data != parts[i].data) std::abort();
  }
}

}  // namespace
}  // namespace vlcache

FUZZ_TARGET(form) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view type = text.substr(0, text.find('\n')),
                         body = text.substr(std::min(text.size(), type.size() + 1));
  try {
    const std::vector<FormPart> parts = parse_form(type, body);
    if (parts.size() > kMaxFormParts) std::abort();
    for (const FormPart& part : parts) {
      const bool within = part.data.empty() || (part.data.data() >= body.data() &&
                                                part.data.data() + part.data.size() <= body.data() + body.size());
      if (!within || part.name.empty() || !is_valid_utf8(part.name)) std::abort();
    }
    check_again(parts, body);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInput || !is_valid_utf8(e.what())) std::abort();
  }
  return 0;
}
