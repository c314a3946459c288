#include "server/http/form.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file_url.h"
#include "base/utf8.h"
#include "server/http/http_server.h"

namespace vlcache {
namespace {

constexpr size_t kMaxBoundary = 256;  // RFC 2046 allows 70

[[noreturn]] void bad_form(const std::string& what) { throw Error(ErrorCode::kInput, "the form: " + what); }

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
}

// As errors quote what a client sent.
std::string shown(std::string_view text) {
  std::string quoted = to_valid_utf8(text.substr(0, 80));
  std::ranges::replace_if(
      quoted, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return "'" + quoted + "'";
}

struct HeaderValue {
  std::string value;  // before the first parameter
  std::vector<std::pair<std::string, std::string>> parameters;

  // Null if it has none of that name.
  const std::string* find(std::string_view name) const {
    const auto found = std::ranges::find(parameters, name, &std::pair<std::string, std::string>::first);
    return found == parameters.end() ? nullptr : &found->second;
  }
};

// Removes a quoted string from the beginning of `text`, which begins after its first quote. Backslashes escape quotes
// and backslashes alone: Windows' browsers sent paths with bare ones. nullopt: the last quote is missing.
std::optional<std::string> take_quoted(std::string_view& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return out;
    }
    const bool escapes = text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\');
    out += text[escapes ? ++i : i];
  }
  return std::nullopt;
}

// form-data; name="file"; filename="a.pdf". nullopt: the parameters have another form, or one of them is there twice.
std::optional<HeaderValue> parse_value(std::string_view text) {
  HeaderValue out;
  size_t end = std::min(text.find(';'), text.size());
  out.value = lower_case(trimmed(text.substr(0, end)));
  text.remove_prefix(end);
  while (!text.empty()) {
    text = trimmed(text.substr(1));
    if (text.empty()) break;  // a semicolon at the end
    end = text.find_first_of("=;");
    if (end == text.npos || text[end] == ';') return std::nullopt;
    std::string name = lower_case(trimmed(text.substr(0, end)));
    text = trimmed(text.substr(end + 1));
    std::optional<std::string> value;
    if (text.starts_with('"')) {
      text.remove_prefix(1);
      value = take_quoted(text);
      text = trimmed(text);
      if (!value || (!text.empty() && text[0] != ';')) return std::nullopt;
    } else {
      end = std::min(text.find(';'), text.size());
      value = trimmed(text.substr(0, end));
      text.remove_prefix(end);
    }
    if (out.find(name) != nullptr) return std::nullopt;
    out.parameters.emplace_back(std::move(name), *std::move(value));
  }
  return out;
}

// A value of RFC 8187: UTF-8''na%C3%AFve.pdf. nullopt: another charset, or broken escapes.
std::optional<std::string> extended_value(std::string_view text) {
  const size_t first = text.find('\''), second = first == text.npos ? first : text.find('\'', first + 1);
  if (second == text.npos) return std::nullopt;
  const std::string charset = lower_case(text.substr(0, first));
  const std::optional<std::string> bytes = decode_percent(text.substr(second + 1));
  if (!bytes || charset == "utf-8" || charset == "us-ascii") return bytes;
  if (charset != "iso-8859-1") return std::nullopt;
  std::string out;
  for (const char c : *bytes) append_utf8(out, static_cast<unsigned char>(c));
  return out;
}

std::string boundary_of(std::string_view content_type) {
  const std::optional<HeaderValue> type = parse_value(content_type);
  if (!type || type->value != "multipart/form-data") {
    bad_form("expected Content-Type: multipart/form-data; boundary=..., found " + shown(content_type));
  }
  const std::string* boundary = type->find("boundary");
  if (boundary == nullptr) {
    bad_form("Content-Type has no boundary; leave the header to the library that writes the form");
  }
  if (boundary->empty() || boundary->size() > kMaxBoundary || has_control(*boundary) || boundary->ends_with(' ')) {
    bad_form("expected a boundary of 1 to " + std::to_string(kMaxBoundary) + " characters, found " + shown(*boundary));
  }
  return *boundary;
}

class FormParser {
 public:
  FormParser(std::string_view content_type, std::string_view body)
      : boundary_(boundary_of(content_type)), delimiter_("--" + boundary_), rest_(body) {}

  std::vector<FormPart> parse() {
    skip_preamble();
    std::vector<FormPart> parts;
    while (!ended_) {
      if (parts.size() == kMaxFormParts) bad_form("expected at most " + std::to_string(kMaxFormParts) + " parts");
      where_ = "part " + std::to_string(parts.size() + 1);
      FormPart part = read_headers();
      part.data = read_data();
      parts.push_back(std::move(part));
    }
    return parts;
  }

 private:
  // How much of `text`, which follows a delimiter, ends its line; sets whether it is the form's last. 0: it is data.
  size_t line_end(std::string_view text, bool& last) const {
    last = text.starts_with("--");
    const size_t end = std::min(text.find_first_not_of(" \t", last ? 2 : 0), text.size());
    if (text.substr(end).starts_with(newline_)) return end + newline_.size();
    // After the last delimiter, the end of the body ends the line, too, and an epilogue of any form may follow it.
    return last && (end == text.size() || text[end] == '\r' || text[end] == '\n') ? end : 0;
  }

  void skip_preamble() {
    for (size_t at = 0; (at = rest_.find(delimiter_, at)) != rest_.npos; ++at) {
      if (at > 0 && rest_[at - 1] != '\n') continue;
      const std::string_view after = rest_.substr(at + delimiter_.size());
      const std::string_view line = after.substr(0, after.find('\n'));
      newline_ = line.size() < after.size() && !line.ends_with('\r') ? "\n" : "\r\n";
      const size_t n = line_end(after, ended_);
      if (n == 0) continue;
      delimiter_ = newline_ + delimiter_;
      rest_ = after.substr(n);
      return;
    }
    bad_form("its first boundary (" + shown("--" + boundary_) + ") is missing");
  }

  std::string_view take_line(size_t& n_left) {
    const size_t end = rest_.substr(0, n_left).find('\n');
    if (end == rest_.npos) {
      const bool cut = rest_.size() < n_left;
      bad_form(where_ + (cut ? " ends in its headers: was the upload cut off?"
                             : ": expected headers of at most " + std::to_string(kMaxPartHeaderBytes) + " bytes"));
    }
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    n_left -= end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  FormPart read_headers() {
    FormPart part;
    bool has_name = false;
    size_t n_left = kMaxPartHeaderBytes;
    for (std::string_view line = take_line(n_left); !line.empty(); line = take_line(n_left)) {
      std::string text(line);
      while (rest_.starts_with(' ') || rest_.starts_with('\t')) text += take_line(n_left);  // folded lines
      const size_t colon = text.find(':');
      std::ranges::replace(text, '\t', ' ');
      if (colon == text.npos || has_control(text)) bad_form(where_ + ": expected a header, found " + shown(text));
      const std::string name = lower_case(trimmed(std::string_view(text).substr(0, colon)));
      const std::string_view value = trimmed(std::string_view(text).substr(colon + 1));
      if (name == "content-disposition") {
        if (has_name) bad_form(where_ + " has two headers Content-Disposition");
        read_disposition(value, part);
        has_name = true;
      } else if (name == "content-type") {
        part.type = lower_case(trimmed(value.substr(0, value.find(';'))));
        if (part.type.starts_with("multipart/")) bad_form(where_ + " is a form itself; send each file as one part");
      } else if (name == "content-transfer-encoding") {
        const std::string coding = lower_case(value);
        const bool plain = coding == "binary" || coding == "8bit" || coding == "7bit" || coding.empty();
        if (!plain) bad_form(where_ + ": expected the file's own bytes, found " + shown(coding));
      }
    }
    if (!has_name) bad_form(where_ + R"( has no header Content-Disposition: form-data; name="...")");
    return part;
  }

  void read_disposition(std::string_view text, FormPart& part) const {
    const std::optional<HeaderValue> value = parse_value(text);
    const std::string* name = value && value->value == "form-data" ? value->find("name") : nullptr;
    if (name == nullptr || name->empty() || !is_valid_utf8(*name)) {
      bad_form(where_ + R"(: expected Content-Disposition: form-data; name="...", found )" + shown(text));
    }
    part.name = *name;
    if (const std::string* filename = value->find("filename")) part.filename = *filename;
    const std::string* extended = value->find("filename*");
    if (std::optional<std::string> decoded = extended != nullptr ? extended_value(*extended) : std::nullopt) {
      part.filename = *std::move(decoded);
    }
  }

  // A delimiter begins with the end of a line, which the empty line before the data may be.
  std::string_view read_data() {
    const std::string_view with_line(rest_.data() - newline_.size(), rest_.size() + newline_.size());
    const std::string_view from = with_line.starts_with(newline_) ? with_line : rest_;
    const size_t n_before = from.size() - rest_.size();
    for (size_t at = 0; (at = from.find(delimiter_, at)) != from.npos; ++at) {
      const std::string_view after = from.substr(at + delimiter_.size());
      const size_t n = line_end(after, ended_);
      if (n == 0) continue;
      const std::string_view data = at < n_before ? std::string_view() : rest_.substr(0, at - n_before);
      rest_ = after.substr(std::min(n, after.size()));
      return data;
    }
    bad_form("its last boundary (" + shown("--" + boundary_ + "--") + ") is missing: was the upload cut off?");
  }

  const std::string boundary_;
  std::string delimiter_, newline_, where_;
  std::string_view rest_;
  bool ended_ = false;
};

}  // namespace

std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body) {
  return FormParser(content_type, body).parse();
}

std::string filename_parameter(std::string_view text) {
  std::string plain, escaped;
  bool all_plain = true;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    const bool quotable = byte >= ' ' && byte < 0x7f && c != '"' && c != '\\' && c != '%';
    all_plain = all_plain && quotable;
    if (quotable || (byte & 0xC0) != 0x80) plain += quotable ? c : '_';  // one for a character
    if (letter || c == '-' || c == '.' || c == '_' || c == '~') {
      escaped += c;
    } else {
      escaped += '%';
      escaped += "0123456789ABCDEF"[byte >> 4];
      escaped += "0123456789ABCDEF"[byte & 15];
    }
  }
  std::string out = "filename=\"" + plain + "\"";
  return all_plain ? out : out + "; filename*=UTF-8''" + escaped;
}

}  // namespace vlcache
