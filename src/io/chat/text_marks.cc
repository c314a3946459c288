#include "io/chat/text_marks.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/format.h"
#include "base/ordered_json.h"
#include "base/utf8.h"

namespace vlcache {
namespace {

constexpr char32_t kFirstMark = 0xE000, kLastMark = 0xF8FF;
constexpr size_t kMaxEdge = 64;  // bytes of a piece's beginning or end that are searched at a text's edges

std::string utf8_of(char32_t c) {
  std::string out;
  append_utf8(out, c);
  return out;
}

// As JSON and Python's repr write the character.
std::string escape_of(char32_t mark) {
  char text[8];
  std::snprintf(text, sizeof text, "\\u%04x", static_cast<unsigned>(mark));
  return text;
}

bool is_space(char c) { return c == ' ' || ('\t' <= c && c <= '\r'); }

void each_text(const OrderedJson& json, const std::function<void(const std::string&)>& see) {
  if (json.is_string()) see(json.get_ref<const std::string&>());
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      see(key);
      each_text(value, see);
    }
  } else if (json.is_array()) {
    for (const OrderedJson& item : json) each_text(item, see);
  }
}

void sort_unique(std::vector<std::string>& list) {
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

size_t character_size(std::string_view text, size_t at) {
  size_t end = at;
  next_code_point(text, end);
  return end - at;
}

}  // namespace

TextMarks::TextMarks(std::vector<std::string> pieces, Reads reads)
    : pieces_(std::move(pieces)), reads_(std::move(reads)) {
  std::erase_if(pieces_, [](const std::string& piece) { return piece.empty(); });
  sort_unique(pieces_);
  for (const std::string& piece : pieces_) {
    for (size_t n = 1; n < std::min(piece.size(), kMaxEdge); ++n) {
      heads_.push_back(piece.substr(0, n));
      tails_.push_back(piece.substr(piece.size() - n));
    }
  }
  sort_unique(heads_);
  sort_unique(tails_);
}

char32_t TextMarks::choose(std::initializer_list<const OrderedJson*> texts) const {
  std::unordered_set<char32_t> used;
  const auto see = [&](const std::string& text) {
    if (!is_valid_utf8(text)) return;  // the template's reader says so
    // Characters from U+E000 to U+F8FF begin with the bytes EE or EF.
    for (size_t i = text.find_first_of("\xEE\xEF"); i != text.npos; i = text.find_first_of("\xEE\xEF", i)) {
      used.insert(next_code_point(text, i));
    }
    // Once over the text, not once for each mark.
    for (size_t i = text.find("\\u"); i != text.npos; i = text.find("\\u", i + 1)) {
      const std::string digits = text.substr(i + 2, 4);
      if (digits.size() == 4 && digits.find_first_not_of("0123456789abcdef") == digits.npos) {
        used.insert(static_cast<char32_t>(std::stoul(digits, nullptr, 16)));
      }
    }
  };
  for (const std::string& piece : pieces_) see(piece);
  for (const OrderedJson* json : texts) {
    if (json != nullptr) each_text(*json, see);
  }
  for (char32_t mark = kFirstMark; mark <= kLastMark; ++mark) {
    if (!used.contains(mark)) return mark;
  }
  throw Error(ErrorCode::kInput,
              "messages: the texts contain every private-use character from U+E000 to U+F8FF; "
              "expected texts that leave one of them free");
}

bool TextMarks::starts_piece(std::string_view text, size_t at, size_t& length) const {
  // Narrows the range of pieces that begin with the bytes read so far.
  auto first = pieces_.begin(), last = pieces_.end();
  for (size_t n = 0; first != last; ++n) {
    if (first->size() == n) {  // the shortest piece of the range
      length = n;
      return true;
    }
    if (at + n == text.size()) return false;
    const char next = text[at + n];
    const auto byte = [n](const std::string& piece) {
      return piece.size() > n ? static_cast<int>(static_cast<unsigned char>(piece[n])) : -1;
    };
    const int wanted = static_cast<unsigned char>(next);
    first = std::partition_point(first, last, [&](const std::string& piece) { return byte(piece) < wanted; });
    last = std::partition_point(first, last, [&](const std::string& piece) { return byte(piece) <= wanted; });
  }
  return false;
}

bool TextMarks::ends_in_piece(std::string_view text) const {
  for (size_t n = 1; n <= std::min(text.size(), kMaxEdge); ++n) {
    if (std::ranges::binary_search(heads_, std::string(text.substr(text.size() - n)))) return true;
  }
  return false;
}

bool TextMarks::begins_in_piece(std::string_view text) const {
  for (size_t n = 1; n <= std::min(text.size(), kMaxEdge); ++n) {
    if (std::ranges::binary_search(tails_, std::string(text.substr(0, n)))) return true;
  }
  return false;
}

std::string TextMarks::marked(std::string_view text, char32_t mark, bool edges) const {
  const std::string sign = utf8_of(mark);
  size_t begin = 0, end = text.size();
  while (begin < end && is_space(text[begin])) ++begin;
  while (end > begin && is_space(text[end - 1])) --end;
  const std::string_view inner = text.substr(begin, end - begin);
  if (inner.empty() || !is_valid_utf8(text)) return std::string(text);
  // A piece may also come about where two texts, or a text and the template's, meet.
  const bool at_begin = edges && begins_in_piece(inner), at_end = edges && ends_in_piece(inner);
  std::string out;
  for (size_t i = 0; i < text.size();) {
    size_t length = 0;
    const bool starts = starts_piece(text, i, length);
    const size_t n = character_size(text, i);
    // The only character of a piece has the mark before it, which encode_marked knows.
    if ((starts && length <= n) || (i == begin && at_begin)) out += sign;
    out.append(text, i, n);
    if (starts && length > n) out += sign;
    i += n;
    if (i == end && at_end) out += sign;
  }
  if (!reads_ || !reads_(out, mark)) return out;
  out.clear();
  for (size_t i = 0; i < text.size();) {
    const size_t n = character_size(text, i);
    out.append(text, i, n);
    i += n;
    if (i < end && i > begin && !is_space(text[i]) && !is_space(text[i - 1])) out += sign;
  }
  return out;
}

bool TextMarks::apply(OrderedJson& json, char32_t mark) const {
  if (json.is_string()) {
    auto& text = json.get_ref<std::string&>();
    std::string with_marks = marked(text, mark);
    const bool any = with_marks.size() != text.size();
    if (any) text = std::move(with_marks);
    return any;
  }
  bool any = false;
  if (json.is_array()) {
    for (OrderedJson& item : json) any |= apply(item, mark);
  }
  if (!json.is_object()) return any;
  bool keys = false;
  for (auto& [key, value] : json.items()) {
    keys |= marked(key, mark, /*edges=*/false).size() != key.size();
    if ((key == "role" || key == "type") && value.is_string()) continue;
    any |= apply(value, mark);
  }
  if (!keys) return any;
  OrderedMembers renamed;
  renamed.reserve(json.size());
  for (auto& [key, value] : json.items()) renamed.emplace_back(marked(key, mark, /*edges=*/false), std::move(value));
  json = ordered_object(std::move(renamed));
  return true;
}

std::string with_plain_marks(std::string rendered, char32_t mark) {
  return with_replaced(rendered, escape_of(mark), utf8_of(mark));
}

}  // namespace vlcache
