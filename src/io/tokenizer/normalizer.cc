// NFC and its kin, Replace, Prepend, Strip, Lowercase, StripAccents, ByteLevel, Sequence.
#include "io/tokenizer/normalizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "io/tokenizer/unicode.h"

namespace vlcache {
namespace {

struct ByteLevelTable {
  std::array<std::string, 256> characters;
  std::array<int16_t, 0x144> bytes;
};

const ByteLevelTable& byte_level_table() {
  static const ByteLevelTable table = [] {
    ByteLevelTable t;
    t.bytes.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      append_utf8(t.characters[static_cast<size_t>(b)], c);
      t.bytes[c] = static_cast<int16_t>(b);
    }
    return t;
  }();
  return table;
}

// Rewrites or drops character by character.
template <typename Rewrite>
void rewrite_characters(Piece& piece, std::string& text, Rewrite rewrite) {
  std::string out;
  out.reserve(piece.text.size());
  size_t n_start = 0;
  for (size_t i = 0; i < piece.text.size();) {
    const size_t here = i;
    const char32_t c = next_code_point(piece.text, i);
    const size_t before = out.size();
    rewrite(out, c);
    if (here < piece.n_start_bytes) n_start += out.size() - before;
  }
  text = std::move(out);
  piece.text = text;
  piece.n_start_bytes = n_start;
}

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  void apply(Piece& piece, std::string& text) const override {
    std::string out = normalize_text(form_, piece.text);
    if (out != piece.text && piece.n_start_bytes > 0) {
      size_t first = 0;
      if (!out.empty()) next_code_point(out, first);
      piece.n_start_bytes = first;  // the first character stays first
    }
    text = std::move(out);
    piece.text = text;
  }

 private:
  NormalForm form_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(Piece& piece, std::string& text) const override {
    std::vector<TextMatch> matches;
    pattern_.cut(piece.text, matches);
    std::string out;
    piece = replace_matches(piece, matches, content_, out);
    text = std::move(out);
    piece.text = text;
  }

 private:
  Regex pattern_;
  std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(Piece& piece, std::string& text) const override {
    if (piece.text.empty()) return;
    text = prefix_ + std::string(piece.text);
    piece.text = text;
    if (piece.n_start_bytes > 0) piece.n_start_bytes += prefix_.size();
  }

 private:
  std::string prefix_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(Piece& piece, std::string& text) const override {
    const std::string_view s = piece.text;
    size_t begin = s.size(), end = 0;
    for (size_t i = 0; i < s.size();) {
      const size_t here = i;
      if (is_white_space(next_code_point(s, i))) continue;
      begin = std::min(begin, here);
      end = i;
    }
    if (!left_) begin = 0;
    if (!right_) end = s.size();
    std::string out(begin < end ? s.substr(begin, end - begin) : std::string_view());
    piece.n_start_bytes -= std::min(piece.n_start_bytes, begin);
    piece.n_start_bytes = std::min(piece.n_start_bytes, out.size());
    text = std::move(out);
    piece.text = text;
  }

 private:
  bool left_, right_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void apply(Piece& piece, std::string& text) const override { rewrite_characters(piece, text, append_lowercase); }
};

class StripAccentsNormalizer : public Normalizer {
 public:
  void apply(Piece& piece, std::string& text) const override {
    rewrite_characters(piece, text, [](std::string& out, char32_t c) {
      if (!is_combining_mark(c)) append_utf8(out, c);
    });
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(Piece& piece, std::string& text) const override {
    rewrite_characters(piece, text, [](std::string& out, char32_t c) {
      std::string bytes;
      append_utf8(bytes, c);
      for (char b : bytes) append_byte_level(out, static_cast<unsigned char>(b));
    });
  }
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(Piece& piece, std::string& text) const override {
    for (const auto& step : steps_) step->apply(piece, text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

void append_byte_level(std::string& out, unsigned char byte) { out += byte_level_table().characters[byte]; }

int byte_of_character(char32_t c) { return c < 0x144 ? byte_level_table().bytes[c] : -1; }

Regex parse_pattern(const JsonObject& object, std::string_view key) {
  const JsonObject pattern = object.object(key);
  if (pattern.has("Regex")) return Regex(pattern.string("Regex"), pattern.where());
  if (!pattern.has("String")) object.fail(key, "{\"String\": ...} or {\"Regex\": ...}");
  std::string escaped;
  for (char c : pattern.string("String")) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       static_cast<unsigned char>(c) >= 0x80 || c < 0x21;
    if (!plain) escaped += '\\';
    escaped += c;
  }
  return Regex(escaped, pattern.where());
}

std::unique_ptr<Normalizer> parse_normalizer(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null()) return nullptr;
  const JsonObject object(*json, where);
  const std::string type = object.string("type");
  if (type == "Sequence") {
    const Json* list = object.find("normalizers");
    if (list == nullptr || !list->is_array()) object.fail("normalizers", "a list");
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (size_t k = 0; k < list->size(); ++k) {
      auto step = parse_normalizer(&(*list)[k], where + "[" + std::to_string(k) + "]");
      if (step != nullptr) steps.push_back(std::move(step));
    }
    return std::make_unique<SequenceNormalizer>(std::move(steps));
  }
  if (type == "NFC") return std::make_unique<FormNormalizer>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<FormNormalizer>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<FormNormalizer>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<FormNormalizer>(NormalForm::kNfkd);
  if (type == "Replace")
    return std::make_unique<ReplaceNormalizer>(parse_pattern(object, "pattern"), object.string("content"));
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(object.string("prepend"));
  if (type == "Strip") {
    return std::make_unique<StripNormalizer>(object.boolean("strip_left", true), object.boolean("strip_right", true));
  }
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  throw Error(
      ErrorCode::kUnsupported,
      where + ": normalizer type " + shown_json(Json(type)) +
          " is not supported (supported: NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip, Lowercase, StripAccents, "
          "ByteLevel, Sequence)");
}

}  // namespace vlcache
